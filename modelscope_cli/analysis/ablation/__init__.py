"""What becomes of the prediction when layers are taken out."""
