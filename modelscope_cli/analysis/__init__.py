"""One file per question: run the model under a hook session and return a record."""
