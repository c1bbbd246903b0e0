"""`modelscope watch`."""
