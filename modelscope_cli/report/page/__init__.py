"""Self-contained HTML pages of one or two results, with their data embedded."""
