"""What the model is run on: pictures, tensor files, shapes of noise, each turned into batches."""
