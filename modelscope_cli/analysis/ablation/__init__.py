"""How the prediction changes when layers are removed."""
