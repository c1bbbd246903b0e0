"""`modelscope help`."""
