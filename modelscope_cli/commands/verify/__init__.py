"""`modelscope verify`."""
