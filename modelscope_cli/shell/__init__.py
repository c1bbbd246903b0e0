"""How every command begins and ends: the app, the shared options, the streams."""
