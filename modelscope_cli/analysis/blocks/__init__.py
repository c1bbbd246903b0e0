"""Batches of image files as blocks: shared by processes, stored in a folder and merged in order."""
