"""Labelled trainings: what `train.py` runs by name. `dev` is for whoever tunes rules; `final` is not looked at."""
