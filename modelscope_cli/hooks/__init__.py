"""Select layers and calls by pattern, attach hooks, run the model, and restore it."""
