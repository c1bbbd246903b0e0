"""Quantiles over any number of batches, in one pass and without keeping any of them.

Each value is rounded to the nearest number of bfloat16, at most 0.4 % away, and the 65,536 numbers that exist are
counted. Counts merge by addition. Integers up to 256 and what was computed in bfloat16 are exact.

The p-th percentile is the smallest value that at least p % of the finite values are not above: an order statistic,
`numpy.quantile(..., method="inverted_cdf")`. What rounds to infinity, above 3.39e38, is left out.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import torch
from torch import Tensor

N_PATTERNS = 1 << 16
_COUNTS = (torch.uint8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ValueCounts:
    """Counts of the patterns that occurred: for activations a few thousand, 4 to 10 bytes each."""

    patterns: Tensor  # those that occurred, ascending, as uint16
    counts: Tensor  # how often each did, in the smallest type that holds them

    @classmethod
    def of(cls, dense: Tensor) -> Self:
        """Make one of 65,536 counts."""
        dense = dense.cpu()
        patterns = dense.nonzero().flatten()
        counts = dense[patterns]
        most = int(counts.max()) if counts.numel() else 0
        kind = next(kind for kind in _COUNTS if most <= torch.iinfo(kind).max)
        return cls(patterns.to(torch.uint16), counts.to(kind))

    @classmethod
    def none(cls) -> Self:
        return cls.of(torch.zeros(N_PATTERNS, dtype=torch.int64))

    def dense(self) -> Tensor:
        """Return all 65,536 counts as int64."""
        counts = torch.zeros(N_PATTERNS, dtype=torch.int64)
        counts[self.patterns.long()] = self.counts.long()
        return counts

    def merge(self, other: Self) -> Self:
        """Return the counts of both sets of values; exact, associative and commutative."""
        return self.of(self.dense() + other.dense())

    @property
    def total(self) -> int:
        return int(self.counts.sum(dtype=torch.int64))

    def holding(self, rank: int) -> int:
        """Return the pattern of the value with this rank, 1 being the lowest; beyond the last, the last."""
        up_to = self.counts.cumsum(0, dtype=torch.int64)
        return int(self.patterns[int(torch.searchsorted(up_to, min(rank, int(up_to[-1]))))])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueCounts) and torch.equal(self.dense(), other.dense())

    __hash__ = None  # type: ignore[assignment]


_RUN = 16  # elements that lie together: reading one of them from memory brings in about this many


def in_memory_order(x: Tensor) -> Tensor:
    """Return the elements of `x` in one dimension, in whichever order needs no copy."""
    if x.is_contiguous():
        return x.reshape(-1)
    return x.permute(sorted(range(x.ndim), key=x.stride, reverse=True)).reshape(-1)


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


_CHUNK = 1 << 18
_HALF = N_PATTERNS // 2
# Between them lie the finite values; NaN and infinite ones are outside.
_FIRST, _END = 0x0080, 0xFF80


def value_counts(x: Tensor) -> Tensor:
    """Return how many values of `x` round to each number of bfloat16, int64, on its device.

    They are in the order of the numbers, from the lowest; NaN and infinite values count nowhere.
    """
    counts = torch.zeros(N_PATTERNS, dtype=torch.int64, device=x.device)
    flat = in_memory_order(x)
    for chunk in torch.split(flat, _CHUNK) if x.device.type == "cpu" else (flat,):  # which stays in cache
        counts += _count(chunk.to(torch.bfloat16).view(torch.int16).to(torch.int32).add_(_HALF))
    # As signed numbers, the bits of negative values are in the opposite order, from -0.0 on.
    counts = torch.cat([counts[:_HALF].flip(0), counts[_HALF:]])
    counts[:_FIRST] = 0
    counts[_END:] = 0
    return counts


def _count(patterns: Tensor) -> Tensor:
    if patterns.device.type == "cpu":
        return torch.bincount(patterns, minlength=N_PATTERNS)
    counts = torch.zeros(N_PATTERNS, dtype=torch.int64, device=patterns.device)  # bincount would wait for it
    return counts.scatter_add_(0, patterns.long(), torch.ones_like(patterns, dtype=torch.int64))


def quantiles_of(keys: Iterable[str], counts: ValueCounts) -> dict[str, float]:
    """Return the quantiles of these names, such as `p50`; none of no values."""
    n = counts.total
    ranks = {key: max(math.ceil(Fraction(key.removeprefix("p")) * n / 100), 1) for key in keys if n}
    return {key: _value(counts.holding(rank)) for key, rank in ranks.items()}


def _value(pattern: int) -> float:
    bits = torch.tensor(pattern - _HALF if pattern >= _HALF else -pattern - 1, dtype=torch.int16)
    return bits.view(torch.bfloat16).item() + 0.0  # -0.0 and 0.0 are the same value
