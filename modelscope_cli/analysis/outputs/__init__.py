"""Adapters that read any model output as classes, pixels, boxes or vectors."""
