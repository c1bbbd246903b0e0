"""`modelscope prune`."""
