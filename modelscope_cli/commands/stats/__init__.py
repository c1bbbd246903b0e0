"""`modelscope stats`."""
