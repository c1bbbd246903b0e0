"""A small instrumented training loop, and the functions `train` and `lrfind`."""
