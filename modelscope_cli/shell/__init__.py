"""The command-line shell: the app, the shared options, output and streams."""
