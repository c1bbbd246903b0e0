"""A histogram whose parts merge exactly, in any order, without knowing the range beforehand. Standard library.

Bins are `width` wide with `width = 2 ** exponent`, and every edge is a whole multiple of it. Halving the
resolution joins two neighbours into one bin of the coarser grid, so histograms of different ranges meet on
the coarser of their grids without splitting a bin. The exponent is the smallest that covers the range with
at most `N_BINS` bins; between 33 and 64 bins are in use.
"""

import math
from dataclasses import dataclass
from typing import Self

N_BINS = 64
# The spacing of the smallest float32 numbers: a finer grid than this tells no two of them apart.
MIN_EXPONENT = -149


def grid(low: float, high: float) -> tuple[int, int]:
    """Return `(exponent, first)`: the finest grid that covers `low..high`, and the first bin's index on it."""
    # Nor does one finer than a double's 53 bits; and so every index is a whole number that a double holds.
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
    """Counts over `[(first + i) * 2**exponent, (first + i + 1) * 2**exponent)` for `i` in `0..len(counts)-1`.

    Attributes:
        low, high: the true smallest and largest value, which decide the grid.
        is_sampled: the counts come from an even sample of the values.
    """

    low: float
    high: float
    exponent: int
    first: int
    counts: tuple[int, ...]
    is_sampled: bool = False

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
