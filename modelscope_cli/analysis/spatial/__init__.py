"""Image positions and receptive fields of tensor elements, tracked through a run."""
