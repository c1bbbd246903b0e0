"""The smallest change of an image that fools a model."""
