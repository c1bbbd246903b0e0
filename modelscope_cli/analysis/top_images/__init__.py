"""The images that activate each channel of a layer most, in the middle and least."""
