"""`modelscope check`."""
