"""The evidence that the rules of `check` judge."""
