"""`modelscope diff`."""
