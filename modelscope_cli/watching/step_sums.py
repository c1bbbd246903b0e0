"""Sums over the outputs of one call of a layer between two optimizer steps."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.quantiles import even_sample, in_memory_order
from modelscope_cli.analysis.statistics.reduce import reduce_short, reduce_tensor
from modelscope_cli.hooks.fetch import Deferred, joined, known
from modelscope_cli.records.naming import NEAR_ZERO, is_rectifier
from modelscope_cli.watching.parameters import norm_of

LOWEST, HIGHEST = -20, 12  # powers of two: about 1e-6 to 4096
N_BINS = 2 * (HIGHEST - LOWEST)
EDGES: tuple[float, ...] = (
    *(math.ldexp(1 + half / 2, power) for power in range(LOWEST, HIGHEST) for half in (0, 1)),
    math.ldexp(1, HIGHEST),
)
_SAMPLE = 1 << 12  # least number of values read of a large tensor; one of up to twice as many is read whole
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
        return _count_rows(bits[None].numpy())[0] * step
    code = (bits & 0x7FFFFFFF) >> 22
    counts = torch.zeros(_N_CODES, dtype=torch.int64, device=x.device)
    counts.scatter_add_(0, code.to(torch.int64), torch.ones_like(code, dtype=torch.int64))
    below, inside, above = counts[:_NON_FINITE].split((_FIRST, N_BINS, _NON_FINITE - _FIRST - N_BINS))
    return torch.cat((below.sum(0, keepdim=True), inside, above.sum(0, keepdim=True))) * step


def _count_rows(bits: NDArray[np.int32]) -> Tensor:
    """Return the counts of each row of float32, given as bits."""
    codes = (bits & 0x7FFFFFFF) >> 22
    codes += np.arange(0, len(codes) * _N_CODES, _N_CODES, dtype=np.int32)[:, None]
    counts = np.bincount(codes.reshape(-1), minlength=len(codes) * _N_CODES).reshape(-1, _N_CODES)
    inside = counts[:, _FIRST - 1 : _FIRST + N_BINS + 1].copy()
    inside[:, 0], inside[:, -1] = counts[:, :_FIRST].sum(1), counts[:, _FIRST + N_BINS : _NON_FINITE].sum(1)
    return torch.from_numpy(inside)


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
_AT_ONCE = 1 << 16  # elements of all outputs of one size that are reduced at once; they stay in the cache
_WANTED = Wanted(histogram=False, threshold=NEAR_ZERO)


@dataclass(frozen=True, slots=True)
class FunctionOperation:
    """The layer or function that returned an output."""

    type: str  # the class of a layer, or `type_of` a function
    channel_dim: int | None  # dimension of the channels in the output
    dim: int | None  # dimension of a softmax

    @property
    def rectified_dim(self) -> int | None:
        return self.channel_dim if is_rectifier(self.type) else None


@dataclass(slots=True)
class StepSums:
    """The sums of the current step. Results stay on the device until it ends."""

    moments: list[Deferred[Moments]] = field(default_factory=list)
    counts: Tensor | None = None
    saturated: Tensor | None = None
    n_rated: int = 0
    norms: list[tuple[Tensor, float]] = field(default_factory=list)  # of gradients, and their scale
    copies: list[tuple[Tensor, FunctionOperation]] = field(default_factory=list)  # see `reduce_copies`

    def add_output(self, x: Tensor, what: FunctionOperation, copy: Tensor | None) -> None:
        """Add one output, at hook time: later operations may overwrite it. A copy is reduced after the step."""
        if copy is None:
            self._add(reduce_tensor(x, what.rectified_dim, _WANTED), count_magnitudes(x), x, what)
        else:
            self.copies.append((copy, what))

    def _add(self, moments: Deferred[Moments], counts: Tensor, x: Tensor, what: FunctionOperation) -> None:
        self.moments.append(moments)
        if len(self.moments) == _MOST_PENDING:
            self.moments = [known(joined(self.moments).then(_merged)())]
        self.counts = counts if self.counts is None else self.counts + counts
        if (rated := count_saturated(what.type, x, what.dim)) is not None:
            self.saturated = rated[0] if self.saturated is None else self.saturated + rated[0]
            self.n_rated += rated[1]

    def add_gradient(self, gradient: Tensor, scale: float) -> None:
        """Add the gradient of an output, which is `scale` times too large."""
        self.norms.append((norm_of(gradient), scale))

    def row(self) -> Deferred["Sums"]:
        """Return the numbers after the step."""
        reduce_copies([self] if self.copies else [])
        assert self.counts is not None
        moments = joined(self.moments).then(_merged)
        scales, rated, n_rated = [scale for _, scale in self.norms], self.saturated, self.n_rated
        read = (self.counts, *(norm for norm, _ in self.norms), *(() if rated is None else (rated,)))

        def finish(*fetched: Tensor) -> Sums:
            counts, *numbers = fetched[: len(read)]
            squares = [(norm.item() / scale) ** 2 for norm, scale in zip(numbers, scales, strict=False)]
            return Sums(
                moments.finish(*fetched[len(read) :]),
                tuple(counts.tolist()),
                sum(squares) if squares else None,
                None if rated is None else (int(numbers[-1]), n_rated),
            )

        return Deferred((*read, *moments.tensors), finish)


def reduce_copies(several: Collection[StepSums]) -> None:
    """Add the copied outputs of several layers, those of one size at once: each call takes as long for one."""
    by_size: dict[int, list[tuple[StepSums, Tensor, FunctionOperation]]] = defaultdict(list)
    for sums in several:
        for x, what in sums.copies:
            by_size[x.numel()].append((sums, x, what))
        sums.copies = []
    for n, alike in by_size.items():
        n_rows = max(_AT_ONCE // n, 1)
        for some in (alike[first : first + n_rows] for first in range(0, len(alike), n_rows)):
            tensors, dims = [x for _, x, _ in some], [what.rectified_dim for *_, what in some]
            sampled, steps = zip(*(even_sample(in_memory_order(x), _SAMPLE) for x in tensors), strict=True)
            counts = _count_rows(torch.stack(sampled).view(torch.int32).numpy()) * steps[0]
            found = reduce_short(tensors, dims, _WANTED)
            for (sums, x, what), row, moments in zip(some, counts, found, strict=True):
                whole = known(moments) if moments else reduce_tensor(x, what.rectified_dim, _WANTED)
                sums._add(whole, row, x, what)


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
