"""The receipt of an explanation: what it is held against, and where it points. Pure functions over maps."""
