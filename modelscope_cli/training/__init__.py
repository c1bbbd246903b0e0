"""A small training loop with a looking glass around it, and what can be asked of it."""
