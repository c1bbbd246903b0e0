"""The commands, one folder each: `command.py`, `table.py`, `figures.py` and `page.py`."""
