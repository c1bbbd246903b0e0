"""From what was typed to a model: names, weights, checkpoints, the user's own code, devices."""
