"""Where in the image the elements of a tensor lie, followed through a run."""
