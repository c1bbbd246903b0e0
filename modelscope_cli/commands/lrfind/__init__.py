"""`modelscope lrfind`."""
