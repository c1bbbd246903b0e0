"""Select layers and calls by pattern, attach hooks to them, run the model, and leave it as it was."""
