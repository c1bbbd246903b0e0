"""`modelscope demo`."""
