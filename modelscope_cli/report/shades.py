"""What colours a tree or a graph: a number of its rows, in eight shades."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from modelscope_cli.report import numbers

SHADES = 8


@dataclass(frozen=True, slots=True)
class Shade:
    """What rows are coloured by: its name, the value of a row, and how the value reads.

    Attributes:
        scale: how any number of it reads. `adds`: whether values of several rows can be added up.
    """

    name: str
    value: Callable[[Any], float | None]
    words: Callable[[Any], str]
    scale: Callable[[float], str] = numbers.number
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """From where to where values go, zeros and what is missing aside; None where there are none."""

    low: float
    high: float

    @property
    def is_log(self) -> bool:
        """Whether they span so much, as norms do, that shades go by their logarithm."""
        return self.high > 1000 * self.low

    def level(self, value: float | None) -> int:
        """Return a shade from 0, for zero and for what is missing, to `SHADES`."""
        if value is None or not math.isfinite(value) or not value:
            return 0
        if self.high == self.low:
            return SHADES // 2
        if self.is_log:
            span = math.log(self.high) - math.log(self.low)
            share = (math.log(abs(value)) - math.log(self.low)) / span
        else:
            share = abs(value) / self.high
        return max(round(SHADES * share), 1)


def range_of(rows: Sequence[Any], shade: Shade) -> Range | None:
    """Return the range of the magnitudes of a shade over rows."""
    values = (shade.value(row) for row in rows)
    known = [abs(v) for v in values if v is not None and math.isfinite(v) and v]
    return Range(min(known), max(known)) if known else None


def levels(rows: Sequence[Any], shade: Shade) -> dict[int, int]:
    """Return the level of every row, by its identity."""
    found = range_of(rows, shade)
    return {id(row): found.level(shade.value(row)) if found else 0 for row in rows}
