"""`modelscope schema`."""
