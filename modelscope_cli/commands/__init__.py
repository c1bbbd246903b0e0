"""The commands, a folder each: `command.py`, `options.py`, `table.py`, `figures.py` and `page.py`."""
