"""`modelscope summary`."""
