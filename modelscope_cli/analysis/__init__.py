"""One module per function: run the model under a hook session and return a record."""
