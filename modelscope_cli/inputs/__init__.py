"""Turn images, tensor files, noise shapes and Python objects into batches for a model."""
