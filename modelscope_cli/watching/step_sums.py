"""The sums of one call of one layer between two optimizer steps, over all forward passes in between."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.records.naming import NEAR_ZERO
from modelscope_cli.watching.magnitudes import count_magnitudes

_MOST_PENDING = 16  # passes; then there is one transfer after all
_WANTED = Wanted(mad=False, channels=False, histogram=False, threshold=NEAR_ZERO)


@dataclass(slots=True)
class StepSums:
    """What is summed up while a step is prepared. Results stay on the device until the step is over."""

    moments: list[Callable[[], Moments]] = field(default_factory=list)
    counts: Tensor | None = None
    grad_squares: Tensor | None = None

    def add_output(self, x: Tensor) -> None:
        """Take in one output, at hook time: what comes after may rewrite it."""
        self.moments.append(reduce_tensor(x, None, _WANTED))
        if len(self.moments) == _MOST_PENDING:
            merged = self._merged()
            self.moments = [lambda: merged]
        counts = count_magnitudes(x)
        self.counts = counts if self.counts is None else self.counts + counts

    def add_gradient(self, gradient: Tensor, scale: float) -> None:
        """Take in the gradient that arrived at an output, `scale` times too large."""
        norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32) / scale
        square = norm * norm
        self.grad_squares = square if self.grad_squares is None else self.grad_squares + square

    def row(self) -> "Sums":
        """Fetch the numbers; call once the step is over."""
        assert self.counts is not None
        squares = None if self.grad_squares is None else float(self.grad_squares)
        return Sums(self._merged(), tuple(self.counts.tolist()), squares)

    def _merged(self) -> Moments:
        return functools.reduce(Moments.merge, (finish() for finish in self.moments))


@dataclass(frozen=True, slots=True)
class Sums:
    """What is known of one call at one step, in a form that adds up over batches and ranks.

    Attributes:
        grad_squares: the squared norm of the gradient at the output; None where none arrived.
    """

    moments: Moments
    counts: tuple[int, ...]
    grad_squares: float | None

    def to_list(self) -> list[float | int | list[int] | None]:
        """Return what goes into the log."""
        m = self.moments
        used = [i for i, count in enumerate(self.counts) if count]
        first, last = (used[0], used[-1] + 1) if used else (0, 0)
        numbers: list[float | int | list[int] | None] = [m.n, m.mean, m.m2, m.n_zero, m.n_near_zero]
        return [*numbers, m.n_nan, m.n_inf, self.grad_squares, first, list(self.counts[first:last])]
