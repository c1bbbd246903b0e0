"""What the layers put out: statistics and maps."""
