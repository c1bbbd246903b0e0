"""`modelscope models`."""
