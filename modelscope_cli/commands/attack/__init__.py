"""`modelscope attack`."""
