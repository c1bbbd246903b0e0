"""Count |x| into 64 fixed bins, two to a power of two, so that steps, batches and ranks simply add up."""

import math

import numpy as np
import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.quantiles import even_sample, in_memory_order

LOWEST, HIGHEST = -20, 12  # powers of two: about 1e-6 to 4096
N_BINS = 2 * (HIGHEST - LOWEST)
EDGES: tuple[float, ...] = (
    *(math.ldexp(1 + half / 2, power) for power in range(LOWEST, HIGHEST) for half in (0, 1)),
    math.ldexp(1, HIGHEST),
)
_SAMPLE = 1 << 14  # at least so many values of a large tensor; up to twice as many, every one counts
_N_CODES = 512  # nine bits
_FIRST = 2 * (LOWEST + 127)  # code of the lowest bin; 127 is what an exponent of zero is stored as
_NON_FINITE = 2 * 255  # codes from here on are infinite or NaN


def count_magnitudes(x: Tensor) -> Tensor:
    """Return `N_BINS + 2` counts, first those below the lowest edge, last those above the highest.

    The first ten bits of a float32 are its sign, its exponent and whether it lies in the upper half of its power
    of two: shifting them down is the bin. What is not finite counts nowhere. Nothing here waits for a device.
    """
    values, step = even_sample(in_memory_order(x.detach()), _SAMPLE)
    bits = values.to(torch.float32).contiguous().view(torch.int32)
    if x.device.type == "cpu":
        codes = (bits.numpy() & 0x7FFFFFFF) >> 22
        found = torch.from_numpy(np.bincount(codes, minlength=_N_CODES))
    else:
        code = (bits & 0x7FFFFFFF) >> 22
        found = torch.zeros(_N_CODES, dtype=torch.int64, device=x.device)
        found.scatter_add_(0, code.to(torch.int64), torch.ones_like(code, dtype=torch.int64))
    below, inside, above = found[:_NON_FINITE].split((_FIRST, N_BINS, _NON_FINITE - _FIRST - N_BINS))
    return torch.cat((below.sum(0, keepdim=True), inside, above.sum(0, keepdim=True))) * step
