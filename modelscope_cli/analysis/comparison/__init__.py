"""Two models, or two checkpoints, side by side."""
