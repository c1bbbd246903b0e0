"""`modelscope explain`."""
