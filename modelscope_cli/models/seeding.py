"""Random initialisation that repeats, without touching anybody else's random numbers."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generators of torch, Python and NumPy (where loaded) while open; then restore them.

    Models are initialised on the CPU and moved, so generators of other devices are left alone.
    """
    numpy = sys.modules.get("numpy")
    torch_state, python_state = torch.default_generator.get_state(), random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
