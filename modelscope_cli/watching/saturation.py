"""How much of an activation lies where its slope is next to nothing: told from the output alone."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_FLAT = 0.99  # of the way to the end: the slope of tanh is 0.02 there, that of a sigmoid 0.01
_CERTAIN = 0.999  # of a softmax: its gradient is at most a thousandth of what comes in


def _tanh(x: Tensor) -> Tensor:
    return x.abs() > _FLAT


def _sigmoid(x: Tensor) -> Tensor:
    return (x - 0.5).abs() > _FLAT - 0.5


_ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "Tanh": _tanh,
    "F.tanh": _tanh,
    "Sigmoid": _sigmoid,
    "F.sigmoid": _sigmoid,
    "Hardsigmoid": _sigmoid,
    "F.hardsigmoid": _sigmoid,
}
_ROWWISE = {"Softmax": False, "F.softmax": False, "LogSoftmax": True, "F.log_softmax": True}


def dimension_of(module: nn.Module) -> int | None:
    """Return along which dimension a module is a softmax."""
    dim = getattr(module, "dim", None)
    return dim if isinstance(dim, int) else None


def count_saturated(type: str, x: Tensor, dim: int | None) -> tuple[Tensor, int] | None:
    """Return how many values, or rows of a softmax along `dim`, are saturated, and of how many; None for others.

    The first number stays on the device.
    """
    x = x.detach()
    if type in _ELEMENTWISE:
        return torch.count_nonzero(_ELEMENTWISE[type](x)), x.numel()
    if type in _ROWWISE and x.numel() and dim is not None:
        highest = x.amax(dim)
        highest = highest.exp() if _ROWWISE[type] else highest
        return torch.count_nonzero(highest > _CERTAIN), highest.numel()
    return None
