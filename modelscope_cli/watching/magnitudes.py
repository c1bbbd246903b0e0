"""Count |x| into 64 fixed bins, two to a power of two, so that steps, batches and ranks simply add up."""

import math

import torch
from torch import Tensor

LOWEST, HIGHEST = -20, 12  # powers of two: about 1e-6 to 4096
N_BINS = 2 * (HIGHEST - LOWEST)
EDGES: tuple[float, ...] = (
    *(math.ldexp(1 + half / 2, power) for power in range(LOWEST, HIGHEST) for half in (0, 1)),
    math.ldexp(1, HIGHEST),
)
_SAMPLE = 1 << 15  # at least so many values of a large tensor
_EXACT = 1 << 16  # elements up to which every value counts
_BELOW_FIRST = 2 * (LOWEST + 127) - 1


def count_magnitudes(x: Tensor) -> Tensor:
    """Return `N_BINS + 2` counts, first those below the lowest edge, last those above the highest.

    The first ten bits of a float32 are its sign, its exponent and whether it lies in the upper half of its power
    of two: shifting them down is the bin. What is not finite counts nowhere. Nothing here waits for a device.
    """
    flat = x.detach().reshape(-1)
    step = _sampling_step(flat.numel()) if flat.numel() > _EXACT else 1
    bits = flat[::step].to(torch.float32).contiguous().view(torch.int32)
    code = (bits & 0x7FFFFFFF) >> 22
    is_strange = code >= 510
    index = (code - _BELOW_FIRST).clamp_(0, N_BINS + 1)
    index.masked_fill_(is_strange, N_BINS + 2)
    if x.device.type == "cpu":
        return torch.bincount(index, minlength=N_BINS + 3)[:-1] * step
    counts = torch.zeros(N_BINS + 3, dtype=torch.int64, device=x.device)
    return counts.scatter_add_(0, index.to(torch.int64), torch.full_like(index, step, dtype=torch.int64))[:-1]


def _sampling_step(n: int) -> int:
    """A step that shares no factor with any dimension visits all channels, rows and columns alike."""
    step = max(n // _SAMPLE, 1)
    while math.gcd(step, n) > 1:
        step -= 1
    return step
