"""Load models: by name, with weights, from checkpoints or the user's code, onto a device."""
