"""Save and restore the states of random generators."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from modelscope_cli.devices import devices_in_use


class RandomState:
    """The random state of torch: of the CPU and of every accelerator that this process uses."""

    def __init__(self) -> None:
        self._cpu = torch.random.get_rng_state()
        self._states = {d: torch.get_device_module(d).get_rng_state(d) for d in devices_in_use()}

    def has_moved(self) -> bool:
        """Tell whether random numbers were drawn since it was saved."""
        now = {device: torch.get_device_module(device).get_rng_state(device) for device in self._states}
        is_cpu_same = torch.equal(torch.random.get_rng_state(), self._cpu)
        return not is_cpu_same or any(not torch.equal(now[d], state) for d, state in self._states.items())

    def restore(self) -> None:
        torch.random.set_rng_state(self._cpu)
        for device, state in self._states.items():
            torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Restore the states of torch, Python and NumPy on exit."""
    numpy = sys.modules["numpy"].random if "numpy" in sys.modules else None
    torchs, pythons, numpys = RandomState(), random.getstate(), numpy.get_state() if numpy else None
    try:
        yield
    finally:
        torchs.restore()
        random.setstate(pythons)
        if numpy:
            numpy.set_state(numpys)
