"""`modelscope weights`."""
