"""Statistics of a stream of numbers, merged batch by batch without keeping any of them.

Means and squared deviations merge pairwise: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a
Pairwise Algorithm for Computing Sample Variances" (1979), equations 2.1a and 2.1b.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

from modelscope_cli.analysis.statistics.quantiles import ValueCounts
from modelscope_cli.records.naming import NEAR_ZERO

N_BINS = 64
# The spacing of the smallest float32 numbers: a finer grid than this tells no two of them apart.
MIN_EXPONENT = -149


def grid(low: float, high: float) -> tuple[int, int]:
    """Return `(exponent, first)`: the finest grid that covers `low..high`, and the first bin's index on it."""
    # Nor does a grid finer than a double's 53 bits; so every index is an integer that a double holds.
    exponent = max(MIN_EXPONENT, _bits(max(abs(low), abs(high))) - 53)
    if high > low:
        exponent = max(exponent, _bits(high - low) - 7)
    while _index(high, exponent) - _index(low, exponent) >= N_BINS:
        exponent += 1
    return exponent, _index(low, exponent)


def _bits(value: float) -> int:
    """Return the exponent of the smallest power of two above `value`, also where that is an overflow."""
    if not value:
        return MIN_EXPONENT
    return math.frexp(value)[1] if math.isfinite(value) else 1025


def _index(value: float, exponent: int) -> int:
    index = math.floor(math.ldexp(value, -exponent))
    return index if index or value >= 0 else -1  # too small for the scaling, and still below zero


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts over `[(first + i) * 2**exponent, (first + i + 1) * 2**exponent)` for `i` in `0..len(counts)-1`."""

    # low, high: the true smallest and largest value, which decide the grid
    low: float
    high: float
    exponent: int
    first: int
    counts: tuple[int, ...]
    is_sampled: bool = False  # the counts come from an even sample of the values

    def merge(self, other: Self) -> Self:
        """Return the histogram of both sets of values; exact, associative and commutative."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        exponent, first = grid(low, high)  # never finer than that of a part, whose range is within
        counts = [0] * (_index(high, exponent) - first + 1)
        for part in (self, other):
            for offset, count in enumerate(part.counts):
                counts[((part.first + offset) >> (exponent - part.exponent)) - first] += count
        return type(self)(low, high, exponent, first, tuple(counts), self.is_sampled or other.is_sampled)

    @property
    def edges(self) -> tuple[float, ...]:
        """The `len(counts) + 1` bin edges, in the unit of the values."""
        return tuple((self.first + i) * 2.0**self.exponent for i in range(len(self.counts) + 1))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which figures to compute besides mean, deviation, range and the counts of NaN and infinite values."""

    # zero, near_zero: counts of x == 0 and |x| < threshold
    zero: bool = True
    near_zero: bool = True
    # What counts as near zero, in the unit of the values and rounded to their precision
    threshold: float = NEAR_ZERO
    channels: bool = True  # which channels were ever alive
    histogram: bool = True  # counts over at most 64 bins
    quantiles: tuple[str, ...] = ()  # of these names, such as `p50`


RANGE = Wanted(zero=False, near_zero=False, channels=False, histogram=False)
"""Nothing else."""
RANGE_AND_ZEROS = replace(RANGE, zero=True)


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of one tensor of one call, over all batches so far. Finite values only; others are counted."""

    n: int  # finite values seen
    mean: float  # of them; 0 where there are none
    m2: float  # sum of squared deviations from `mean`
    low: float  # the smallest; `inf` where there are none
    high: float  # the largest; `-inf` where there are none
    n_nan: int = 0
    n_inf: int = 0
    n_zero: int | None = None  # None where not asked for
    n_near_zero: int | None = None  # None where not asked for
    # Per channel, whether any value was not zero; None where there are no channels.
    alive: tuple[bool, ...] | None = None
    histogram: Histogram | None = None  # None where not asked for or nothing finite was seen
    values: ValueCounts | None = None  # for quantiles; None where not asked for

    def merge(self, other: Self) -> Self:
        """Return the moments of both sets of values together."""
        n = self.n + other.n
        delta = other.mean - self.mean
        weight = other.n / n if n else 0.0
        return replace(
            self,
            n=n,
            mean=self.mean + delta * weight,
            m2=self.m2 + other.m2 + delta * (self.n * weight) * delta,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            n_nan=self.n_nan + other.n_nan,
            n_inf=self.n_inf + other.n_inf,
            n_zero=_add(self.n_zero, other.n_zero),
            n_near_zero=_add(self.n_near_zero, other.n_near_zero),
            alive=_either(self.alive, other.alive),
            histogram=self.histogram.merge(other.histogram)
            if self.histogram and other.histogram
            else self.histogram or other.histogram,
            values=self.values.merge(other.values) if self.values and other.values else None,
        )

    @property
    def numel(self) -> int:
        return self.n + self.n_nan + self.n_inf

    @property
    def variance(self) -> float:
        """Mean squared deviation (divided by n, as NumPy's `var`)."""
        return self.m2 / self.n if self.n else math.nan

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)

    @property
    def rms(self) -> float:
        return math.sqrt(self.variance + self.mean * self.mean)


def _add(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _either(a: tuple[bool, ...] | None, b: tuple[bool, ...] | None) -> tuple[bool, ...] | None:
    # Unknown for a layer whose number of channels changes from batch to batch.
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x or y for x, y in zip(a, b, strict=True))
