"""What the gradients do in one backward pass."""
