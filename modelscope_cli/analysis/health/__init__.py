"""What the rules of `check` look at."""
