"""Turn images, tensor files, shapes of noise and Python objects into the batches that a model is run on."""
