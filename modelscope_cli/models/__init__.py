"""Turn what was typed into a model: names, weights, checkpoints, the user's own code, devices."""
