"""Receptive fields and image positions of the elements of every tensor, followed through a run."""
