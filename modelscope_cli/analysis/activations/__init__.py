"""Layer outputs: statistics and maps."""
