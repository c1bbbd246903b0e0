"""Pruning, and how far the outputs drift."""
