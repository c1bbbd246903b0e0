"""Findings over records: pure predicates with a code, a threshold, a source and a hint. Standard library only."""
