"""`modelscope rules`."""
