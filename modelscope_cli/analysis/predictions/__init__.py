"""What a classifier says of images."""
