"""Gradients of one backward pass."""
