"""The layers of a model, what goes through them and what they cost."""
