"""The contents of a checkpoint, their statistics, and conversion to safetensors."""
