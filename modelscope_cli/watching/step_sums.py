"""The sums of one call of one layer between two optimizer steps, over all forward passes in between."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.records.naming import NEAR_ZERO
from modelscope_cli.watching.channel_death import pack
from modelscope_cli.watching.magnitudes import count_magnitudes
from modelscope_cli.watching.parameters import norm_of

_FLAT = 0.99  # of the way to the end: the slope of tanh is 0.02 there, that of a sigmoid 0.01
_CERTAIN = 0.999  # of a softmax: its gradient is at most a thousandth of what comes in
_MOST_PENDING = 16  # passes; then there is one transfer after all
_WANTED = Wanted(mad=False, histogram=False, threshold=NEAR_ZERO)


@dataclass(slots=True)
class StepSums:
    """What is summed up while a step is prepared. Results stay on the device until the step is over."""

    moments: list[Callable[[], Moments]] = field(default_factory=list)
    counts: Tensor | None = None
    grad_squares: Tensor | None = None
    saturated: Tensor | None = None
    n_rated: int = 0

    def add_output(self, x: Tensor, channel_dim: int | None = None) -> None:
        """Take in one output, at hook time: what comes after may rewrite it.

        Args:
            channel_dim: which dimension holds channels that may die; None not to look.
        """
        self.moments.append(reduce_tensor(x, channel_dim, _WANTED))
        if len(self.moments) == _MOST_PENDING:
            merged = self._merged()
            self.moments = [lambda: merged]
        counts = count_magnitudes(x)
        self.counts = counts if self.counts is None else self.counts + counts

    def add_gradient(self, gradient: Tensor, scale: float) -> None:
        """Take in the gradient that arrived at an output, `scale` times too large."""
        norm = norm_of(gradient) / scale
        square = norm * norm
        self.grad_squares = square if self.grad_squares is None else self.grad_squares + square

    def add_saturated(self, count: Tensor, of: int) -> None:
        """Take in how many of the values, or rows, of an output were saturated."""
        self.saturated = count if self.saturated is None else self.saturated + count
        self.n_rated += of

    def row(self) -> "Sums":
        """Fetch the numbers; call once the step is over."""
        assert self.counts is not None
        squares = None if self.grad_squares is None else float(self.grad_squares)
        saturated = None if self.saturated is None else (int(self.saturated), self.n_rated)
        return Sums(self._merged(), tuple(self.counts.tolist()), squares, saturated)

    def _merged(self) -> Moments:
        return functools.reduce(Moments.merge, (finish() for finish in self.moments))


@dataclass(frozen=True, slots=True)
class Sums:
    """What is known of one call at one step, in a form that adds up over batches and ranks.

    Attributes:
        grad_squares: the squared norm of the gradient at the output; None where none arrived.
        saturated: how many values, or rows, and of how many; None where nothing can saturate.
    """

    moments: Moments
    counts: tuple[int, ...]
    grad_squares: float | None
    saturated: tuple[int, int] | None = None

    def to_list(self) -> list[Any]:
        """Return what goes into the log."""
        m = self.moments
        used = [i for i, count in enumerate(self.counts) if count]
        first, last = (used[0], used[-1] + 1) if used else (0, 0)
        numbers = [m.n, m.mean, m.m2, m.n_zero, m.n_near_zero, m.n_nan, m.n_inf, self.grad_squares]
        values = [*numbers, first, list(self.counts[first:last])]
        more = [pack(m.alive), self.saturated]
        return values if more == [None, None] else values + more


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
