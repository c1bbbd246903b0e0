"""Charts of numbers row by row, from the input of a model to its output: A and B on one axis."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from modelscope_cli.report.page.charts import Line, Mark, Values, line_chart
from modelscope_cli.report.page.html import element, joined
from modelscope_cli.report.page.section import Section
from modelscope_cli.report.sheet import Column

_LEAST = 3  # rows that make a course


@dataclass(frozen=True, slots=True)
class Curves:
    """One figure of every row in A and in B; None where there is none."""

    title: str
    a: Values
    b: Values

    @property
    def is_drawn(self) -> bool:
        """Whether A and B differ, in enough rows."""
        both = [pair for pair in zip(self.a, self.b, strict=True) if _are_finite(*pair)]
        return len(both) >= _LEAST and any(a != b for a, b in both)

    def farthest(self) -> int:
        """Return the row in which A and B are farthest apart."""

        def apart(n: int) -> float:
            a, b = self.a[n], self.b[n]
            return abs(a - b) if a is not None and b is not None and _are_finite(a, b) else -1.0

        return max(range(len(self.a)), key=apart)


def depth_section(
    curves: Sequence[Curves], labels: Sequence[str], anchor: Callable[[int], str]
) -> list[Section]:
    """Return a chart of each that differs, with the row in which it differs most; nothing where none does.

    Args:
        labels: of the rows; `anchor`: of the row with this place in the table.
    """
    charts = []
    for one in curves:
        if not one.is_drawn:
            continue
        n = one.farthest()
        marks = [Mark(n, labels[n], anchor(n))]
        lines = [_line("A", one.a, 0), _line("B", one.b, 1)]
        charts.append(line_chart(one.title, lines, marks, height=110, last=len(labels) - 1, unit="row"))
    if not charts:
        return []
    words = (
        "From the first row of the table to the last; named is the row in which A and B are farthest apart."
    )
    body = joined([element("p", words, class_="quiet"), element("div", *charts, class_="charts")])
    return [Section("depth", "Along the depth", body)]


def _line(name: str, values: Values, tone: int) -> Line:
    """Return a line that goes past rows without a number, such as those that only the other result has."""
    known = [n for n, value in enumerate(values) if value is not None]
    return Line(name, known, [values[n] for n in known], tone)


def number_of(column: Column, row: Any) -> float | None:
    """Return the number of a row in a column; None where there is no row, or no number."""
    value = None if row is None else column.value(row)
    return float(value) if isinstance(value, int | float) else None


def _are_finite(*values: float | None) -> bool:
    return all(value is not None and math.isfinite(value) for value in values)
