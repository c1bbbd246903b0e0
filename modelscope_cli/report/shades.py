"""The colours of a tree or a graph: a number of its rows in eight shades."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from modelscope_cli.report import numbers

SHADES = 8


@dataclass(frozen=True, slots=True)
class Shade:
    """A quantity that colours rows: its name, the value of a row, and its text."""

    name: str
    value: Callable[[Any], float | None]
    words: Callable[[Any], str]
    scale: Callable[[float], str] = numbers.number  # formats any of its numbers
    adds: bool = False  # whether values of several rows can be added up


@dataclass(frozen=True, slots=True)
class Range:
    """The range of values that are neither zero nor missing; None if there are none."""

    low: float
    high: float

    @property
    def is_log(self) -> bool:
        """Whether the range is so wide, as for norms, that shades are logarithmic."""
        return self.high > 1000 * self.low

    def level(self, value: float | None) -> int:
        """Return a level from 0 (zero or missing) to `SHADES`."""
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
    values = (shade.value(row) for row in rows)
    magnitudes = [abs(v) for v in values if v is not None and math.isfinite(v) and v]
    return Range(min(magnitudes), max(magnitudes)) if magnitudes else None


def levels(rows: Sequence[Any], shade: Shade) -> dict[int, int]:
    """Return the level of every row by its `id`."""
    span = range_of(rows, shade)
    return {id(row): span.level(shade.value(row)) if span else 0 for row in rows}
