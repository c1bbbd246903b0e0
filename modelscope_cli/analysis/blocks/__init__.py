"""Batches as fixed blocks that processes share, stored on disk and merged in order."""
