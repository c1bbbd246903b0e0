"""Which images fire each channel of a layer most, in the middle and least."""
