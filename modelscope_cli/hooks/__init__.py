"""Which layers, attached how, and taken off again: patterns, selections and the hook session."""
