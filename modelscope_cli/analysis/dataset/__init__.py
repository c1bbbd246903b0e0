"""What is wrong with a folder of images, without a model."""
