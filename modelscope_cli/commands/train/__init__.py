"""`modelscope train`."""
