"""`modelscope predict`."""
