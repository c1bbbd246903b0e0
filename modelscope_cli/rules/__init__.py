"""Judge records: rules are pure predicates with a code, a threshold, a source and a hint. Standard library."""
