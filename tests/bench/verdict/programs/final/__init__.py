"""The half for the final measurement: whoever tunes rules reads neither it nor what it prints."""
