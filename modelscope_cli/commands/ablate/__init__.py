"""`modelscope ablate`."""
