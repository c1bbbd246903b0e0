"""Restore the random states that a training changes."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Restore the states of torch, Python and NumPy on exit."""
    numpy = sys.modules["numpy"].random if "numpy" in sys.modules else None
    state, numpys = random.getstate(), numpy.get_state() if numpy else None
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(state)
            if numpy:
                numpy.set_state(numpys)
