"""Look inside a training script while it runs, without a change to it and without disturbing it."""
