"""Predictions for images, and their comparison with the truth."""
