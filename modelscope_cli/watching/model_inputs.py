"""The inputs of a model, and that of its first layer with weights."""

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import RANGE, Moments
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.hooks.fetch import Deferred, joined
from modelscope_cli.hooks.layers import tensors_in

_TOKENS = torch.int64, torch.int32
_COLOURS, _SMALLEST = (3, 4), 8  # channels; pixels of a side


@dataclass(frozen=True, slots=True)
class EnteringKey:
    """An input: an argument of the model (`input`, `input#1`), or of its first layer with weights (its name)."""

    name: str
    type: str  # the class of the first layer with weights; empty for an argument of the model
    shape: tuple[int, ...]  # of the first such tensor; batches may differ
    dtype: str
    is_computed: bool  # whether gradients flow through it to another model


@dataclass(slots=True)
class EnteringSums:
    """Sums over the passes of a step; results stay on the device until the step ends."""

    _pending: list[tuple[Deferred[Moments], Deferred[bool]]] = field(default_factory=list)
    batch: int = 0

    def add(self, x: Tensor) -> None:
        """Add a tensor, at hook time: later operations may overwrite it."""
        moments = reduce_tensor(x, None, RANGE)
        alike = (x == x[:1]).all() if x.ndim > 1 and len(x) > 1 else torch.zeros((), dtype=torch.bool)
        self._pending.append((moments, Deferred((alike,), bool)))
        self.batch = max(self.batch, len(x) if x.ndim else 1)

    def row(self) -> Deferred["Entering"]:
        """Return the numbers after the step."""
        moments, alike = zip(*self._pending, strict=True)
        parts: list[Deferred[Any]] = [joined(moments), joined(alike)]
        return joined(parts).then(
            lambda fetched: Entering(reduce(Moments.merge, fetched[0]), self.batch, all(fetched[1]))
        )


@dataclass(frozen=True, slots=True)
class Entering:
    """The inputs between two steps."""

    moments: Moments
    batch: int  # largest number of samples in one pass
    is_alike: bool  # whether every sample of a pass was the same as its first

    def to_list(self) -> list[float | int | bool]:
        m = self.moments
        return [m.n, m.mean, m.m2, m.low, m.high, m.n_nan + m.n_inf, self.batch, self.is_alike]


def data_in(args: Any) -> list[Tensor]:
    """Return the tensors of numbers among the arguments of a model, and first of all tokens.

    A nested argument after the first, such as `(h, c)`, is a state.
    """
    args = args if isinstance(args, tuple) else (args,)
    found = [x for n, one in enumerate(args) for _, x in tensors_in(one) if not n or isinstance(one, Tensor)]
    return [x for x in found if x.is_floating_point() or (x is found[0] and x.dtype in _TOKENS)]


def roughness_of(x: Tensor) -> float:
    """Return how much more images differ from pixel to pixel than if meant as height, width, channels; 1 of others.

    Neighbouring pixels of an image are alike. Where it went from height, width, channels by `view` or `reshape` and
    not by `permute`, neighbours are of different channels.
    """
    if x.ndim != 4 or x.shape[1] not in _COLOURS or min(x.shape[2:]) < _SMALLEST:
        return 1.0
    n, channels, height, width = x.shape
    return _roughness(x) / max(_roughness(x.reshape(n, height, width, channels).permute(0, 3, 1, 2)), 1e-12)


def _roughness(images: Tensor) -> float:
    """Return the mean difference between neighbouring pixels."""
    across, down = images[..., 1:] - images[..., :-1], images[..., 1:, :] - images[..., :-1, :]
    return float(across.abs().mean() + down.abs().mean())
