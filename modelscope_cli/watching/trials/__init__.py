"""Trials: the script again, with one thing changed from outside, to see whether that makes it learn.

`search.py` decides which trials are run, `catalogue.py` lists them; each runs in a process of its own (`child.py`),
in a copy of the files (`scratch.py`), measured by `meter.py`. The changes are context managers, a file per family.
"""
