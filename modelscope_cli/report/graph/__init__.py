"""The model as one picture: nested boxes in the order in which they run."""
