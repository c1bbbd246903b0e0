"""Axes: round numbers at equal distances from one end to the other."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LARGEST = 1e300  # beyond it the length of an axis is no number


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis.

    Attributes:
        ticks: from its lower end to its upper one, at equal distances (of a logarithmic one: ratios).
        is_log: whether it is logarithmic; then what is not above 0 has no place on it.
    """

    ticks: tuple[float, ...]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value stands: 0 at the lower end, 1 at the upper one; what lies beyond is put there."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        if high == low:
            return 0.5
        return min(max((value - low) / (high - low), 0.0), 1.0)


def linear(values: Iterable[float], most_ticks: int = 5) -> Scale:
    """Return an axis for these, which are finite; from 0 to 1 where there are none."""
    known = [min(max(value, -_LARGEST), _LARGEST) for value in values] or [0.0, 1.0]
    low, high = min(known), max(known)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        half = abs(high) / 2 or 0.5
        low, high = low - half, high + half
    step = _round_step((high - low) / (most_ticks - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Scale(tuple(n * step for n in range(first, max(last, first + 1) + 1)))


def steps(last: int, most_ticks: int = 6) -> Scale:
    """Return an axis of steps, which are counted from 0."""
    step = max(int(_round_step(max(last, 1) / (most_ticks - 1))), 1)
    return Scale(tuple(float(n) for n in range(0, (math.ceil(max(last, 1) / step) + 1) * step, step)))


def logarithmic(values: Iterable[float], most_ticks: int = 6) -> Scale:
    """Return an axis of powers of ten for those of these that are above 0."""
    known = [value for value in values if value > 0] or [0.1, 1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    low = min(max(low, -300), 299)
    high = min(max(high, low + 1), 300)
    stride = -(-(high - low) // (most_ticks - 1))
    n = -(-(high - low) // stride)
    return Scale(tuple(10.0 ** (low + stride * k) for k in range(n + 1)), is_log=True)


def wants_log(values: Sequence[float]) -> bool:
    """Tell whether values, none of them below 0, span so much that a linear axis would hide most of them."""
    known = [value for value in values if value > 0]
    return bool(known) and min(values) >= 0 and max(known) > 1000 * min(known)


def _round_step(step: float) -> float:
    """Return 1, 2, 2.5 or 5 times a power of ten: the least that is not below this."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * n for n in (1.0, 2.0, 2.5, 5.0, 10.0) if power * n >= step * (1 - 1e-9))
