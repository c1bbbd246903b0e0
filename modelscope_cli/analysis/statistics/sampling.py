"""A tensor as a vector, in the order it lies in memory, and an even sample of that."""

import math

from torch import Tensor

_RUN = 16  # elements that lie together: reading one of them from memory brings in about so many


def in_memory_order(x: Tensor) -> Tensor:
    """Return the elements of `x` in one dimension, in whichever order needs no copy."""
    if x.is_contiguous():
        return x.reshape(-1)
    by_stride = sorted(range(x.ndim), key=x.stride, reverse=True)
    return x.permute(by_stride).reshape(-1)


def even_sample(flat: Tensor, least: int) -> tuple[Tensor, int]:
    """Return at least `least` elements of a vector, and how many each stands for; of a short one all, and 1.

    They are short runs at even distances. A distance that shares no factor with the number of runs visits all
    channels, rows and columns alike.
    """
    n_runs = flat.numel() // _RUN
    step = max(n_runs * _RUN // least, 1)
    while math.gcd(step, n_runs) > 1:
        step -= 1
    if step == 1:
        return flat, 1
    return flat[: n_runs * _RUN].view(-1, _RUN)[::step].reshape(-1), step
