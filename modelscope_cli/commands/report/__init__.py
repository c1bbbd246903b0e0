"""`modelscope report`."""
