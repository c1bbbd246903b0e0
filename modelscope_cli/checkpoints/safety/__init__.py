"""Tell whether loading a file would run code: every pickle in it is gone through, none is run."""
