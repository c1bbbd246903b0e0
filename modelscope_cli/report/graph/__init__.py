"""The model as one image: nested boxes in the order in which they run."""
