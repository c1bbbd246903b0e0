"""Tell whether loading a file would run code, by interpreting every pickle in it without running any."""
