"""`modelscope grads`."""
