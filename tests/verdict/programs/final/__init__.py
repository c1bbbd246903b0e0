"""The half for the final measurement: whoever tunes rules does not read it, nor what it prints."""
