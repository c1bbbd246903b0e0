"""Sums over the outputs of one call of a layer between two optimizer steps."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.quantiles import even_sample, in_memory_order
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.hooks.fetch import Deferred, joined, numbers
from modelscope_cli.records.naming import NEAR_ZERO
from modelscope_cli.watching.parameters import norm_of

LOWEST, HIGHEST = -20, 12  # powers of two: about 1e-6 to 4096
N_BINS = 2 * (HIGHEST - LOWEST)
EDGES: tuple[float, ...] = (
    *(math.ldexp(1 + half / 2, power) for power in range(LOWEST, HIGHEST) for half in (0, 1)),
    math.ldexp(1, HIGHEST),
)
_SAMPLE = 1 << 14  # least number of values read of a large tensor; one of up to twice as many is read whole
_N_CODES = 512  # nine bits
_FIRST = 2 * (LOWEST + 127)  # code of the lowest bin; 127 is what an exponent of zero is stored as
_NON_FINITE = 2 * 255  # codes from here on are infinite or NaN


def count_magnitudes(x: Tensor) -> Tensor:
    """Return `N_BINS + 2` counts, first those below the lowest edge, last those above the highest.

    The first ten bits of a float32 are its sign, its exponent and whether it lies in the upper half of its power
    of two: shifting them down is the bin. Non-finite values are not counted. The device is never synchronised.
    """
    values, step = even_sample(in_memory_order(x.detach()), _SAMPLE)
    bits = values.to(torch.float32).contiguous().view(torch.int32)
    if x.device.type == "cpu":
        codes = (bits.numpy() & 0x7FFFFFFF) >> 22
        counts = torch.from_numpy(np.bincount(codes, minlength=_N_CODES))
    else:
        code = (bits & 0x7FFFFFFF) >> 22
        counts = torch.zeros(_N_CODES, dtype=torch.int64, device=x.device)
        counts.scatter_add_(0, code.to(torch.int64), torch.ones_like(code, dtype=torch.int64))
    below, inside, above = counts[:_NON_FINITE].split((_FIRST, N_BINS, _NON_FINITE - _FIRST - N_BINS))
    return torch.cat((below.sum(0, keepdim=True), inside, above.sum(0, keepdim=True))) * step


MOST_NAMED = 64  # channels, in a record
_RECORDS = 8  # a channel that is zero in this many of them in a row is called dead

# Whether any value of a channel was not zero; None without channels.
Alive = tuple[bool, ...] | None


def pack(alive: Alive) -> list[int | str] | None:
    """Return how many channels there are, and the dead ones as the bits of a hexadecimal number."""
    if alive is None:
        return None
    return [len(alive), f"{sum(1 << channel for channel in dead_in(alive)):x}"]


def unpack(packed: Any) -> Alive:
    """Return the value that `pack` packed; raise ValueError for anything else."""
    if packed is None:
        return None
    n_channels, digits = packed
    dead = int(digits, 16)
    if not 0 <= dead < 1 << n_channels:
        raise ValueError("dead channels that are not there")
    return tuple(not dead >> channel & 1 for channel in range(n_channels))


def alive_within(alive: Sequence[Alive]) -> Iterator[Alive]:
    """Yield, for each record, the channels that were alive in it or in one of the records before it.

    A channel that stays silent in one batch is not dead: half of a healthy layer's may be.
    """
    recent: list[tuple[bool, ...]] = []
    for one in alive:
        if one is None or (recent and len(recent[0]) != len(one)):
            recent = []
        if one is None:
            yield None
            continue
        recent = [*recent, one][-_RECORDS:]
        yield tuple(map(any, zip(*recent, strict=True)))


def dead_in(alive: Sequence[bool]) -> list[int]:
    return [channel for channel, is_alive in enumerate(alive) if not is_alive]


def dead_fraction(alive: Alive) -> float | None:
    return len(dead_in(alive)) / len(alive) if alive else None


_FLAT = 0.99  # of the way to the end: the slope of tanh is 0.02 there, that of a sigmoid 0.01
_CERTAIN = 0.999  # of a softmax: its gradient is at most a thousandth of what comes in
_MOST_PENDING = 16  # passes; then there is one transfer after all
_WANTED = Wanted(mad=False, histogram=False, threshold=NEAR_ZERO)


@dataclass(slots=True)
class StepSums:
    """The sums of the current step. Results stay on the device until it ends."""

    moments: list[Deferred[Moments]] = field(default_factory=list)
    counts: Tensor | None = None
    grad_squares: Tensor | None = None
    saturated: Tensor | None = None
    n_rated: int = 0

    def add_output(self, x: Tensor, channel_dim: int | None = None) -> None:
        """Add one output, at hook time: later operations may overwrite it.

        Args:
            channel_dim: dimension of the channels of a rectifier; None for other layers.
        """
        self.moments.append(reduce_tensor(x, channel_dim, _WANTED))
        if len(self.moments) == _MOST_PENDING:
            merged = joined(self.moments).then(_merged)()
            self.moments = [Deferred((), lambda: merged)]
        counts = count_magnitudes(x)
        self.counts = counts if self.counts is None else self.counts + counts

    def add_gradient(self, gradient: Tensor, scale: float) -> None:
        """Add the gradient of an output, which is `scale` times too large."""
        norm = norm_of(gradient) / scale
        square = norm * norm
        self.grad_squares = square if self.grad_squares is None else self.grad_squares + square

    def add_saturated(self, count: Tensor, total: int) -> None:
        """Add the number of saturated values, or rows, of an output."""
        self.saturated = count if self.saturated is None else self.saturated + count
        self.n_rated += total

    def row(self) -> Deferred["Sums"]:
        """Return the numbers after the step."""
        assert self.counts is not None
        n_rated = self.n_rated
        parts: list[Deferred[Any]] = [
            joined(self.moments).then(_merged),
            Deferred((self.counts,), lambda counts: tuple(counts.tolist())),
            numbers([] if self.grad_squares is None else [self.grad_squares]),
            numbers([] if self.saturated is None else [self.saturated]),
        ]

        def finish(fetched: list[Any]) -> Sums:
            moments, counts, squares, saturated = fetched
            is_rated = [(int(count), n_rated) for count in saturated]
            return Sums(moments, counts, next(iter(squares), None), next(iter(is_rated), None))

        return joined(parts).then(finish)


def _merged(moments: list[Moments]) -> Moments:
    return functools.reduce(Moments.merge, moments)


@dataclass(frozen=True, slots=True)
class Sums:
    """Mergeable statistics of one call at one step."""

    moments: Moments
    counts: tuple[int, ...]
    grad_squares: float | None  # squared norm of the gradient at the output; None without one
    # Number of saturated values, or rows, and of all; None for layers that do not saturate
    saturated: tuple[int, int] | None = None

    def to_list(self) -> list[Any]:
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
    dim = getattr(module, "dim", None)
    return dim if isinstance(dim, int) else None


def count_saturated(type: str, x: Tensor, dim: int | None) -> tuple[Tensor, int] | None:
    """Return the number of saturated values, or rows of a softmax along `dim`, and of all; None for other types.

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
