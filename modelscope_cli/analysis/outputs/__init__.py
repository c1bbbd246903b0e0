"""What a model's output says, in one set of words whatever its kind."""
