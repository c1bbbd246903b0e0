"""Self-contained HTML pages of a result, with its data embedded."""
