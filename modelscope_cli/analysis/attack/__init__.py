"""Images changed as little as it takes to fool a model."""
