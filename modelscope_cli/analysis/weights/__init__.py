"""What a checkpoint holds, its values, and writing them elsewhere."""
