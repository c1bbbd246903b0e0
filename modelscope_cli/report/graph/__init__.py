"""The graph of a model: its items, drawn as nested boxes."""
