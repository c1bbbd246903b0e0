"""With how many threads a processor computes: the last bits of most models depend on it, as of every long sum."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SAID = (
    "OMP_NUM_THREADS"  # torchrun sets it to 1 where it starts several processes and nobody has said otherwise
)


def threads_of_blocks(device: torch.device) -> int:
    """Return with how many threads blocks are computed: as many as somebody has said, else one, as torchrun has it.

    With another number the same block has other bits; on an accelerator it makes no difference.
    """
    return torch.get_num_threads() if device.type != "cpu" or _SAID in os.environ else 1


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Compute with this many threads in here."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
