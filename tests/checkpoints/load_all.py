"""Load every file that the lines of stdin name, in full, whatever it runs: a process of its own.

It leaves the marks of hostile files behind, and goes on after every error.
"""

import contextlib
import sys
import warnings

import torch

warnings.simplefilter("ignore")
for line in sys.stdin:
    with contextlib.suppress(BaseException), contextlib.redirect_stdout(None):
        torch.load(line.strip(), weights_only=False)
