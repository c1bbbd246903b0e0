"""The graph of a model: nested boxes in execution order."""
