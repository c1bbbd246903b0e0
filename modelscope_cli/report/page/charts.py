"""SVG charts of a page: axes with round ticks, lines over steps or along the depth of a model, bars."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import shortened
from modelscope_cli.report.page.html import NOTHING, Html, element

_LARGEST = 1e300  # beyond it the length of an axis overflows


@dataclass(frozen=True, slots=True)
class AxisScale:
    """An axis."""

    # From the lower to the upper end, at equal distances (ratios on a logarithmic axis)
    ticks: tuple[float, ...]
    is_log: bool = False  # whether it is logarithmic, for positive values only

    def place(self, value: float) -> float:
        """Return the position of a value, clamped: 0 at the lower end, 1 at the upper one."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        if high == low:
            return 0.5
        return min(max((value - low) / (high - low), 0.0), 1.0)


def linear(values: Iterable[float], most_ticks: int = 5) -> AxisScale:
    """Return an axis for finite values; from 0 to 1 if there are none."""
    finite = [_within_range(value) for value in values] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        half = abs(high) / 2 or 0.5
        low, high = low - half, high + half
    step = _round_step((high - low) / (most_ticks - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return AxisScale(tuple(n * step for n in range(first, max(last, first + 1) + 1)))


def steps(last: int, most_ticks: int = 6) -> AxisScale:
    """Return an axis of steps, counted from 0."""
    step = max(int(_round_step(max(last, 1) / (most_ticks - 1))), 1)
    return AxisScale(tuple(float(n) for n in range(0, (math.ceil(max(last, 1) / step) + 1) * step, step)))


def logarithmic(values: Iterable[float], most_ticks: int = 6) -> AxisScale:
    positive = [value for value in values if value > 0] or [0.1, 1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    low = min(max(low, -300), 299)
    high = min(max(high, low + 1), 300)
    stride = -(-(high - low) // (most_ticks - 1))
    n = -(-(high - low) // stride)
    return AxisScale(tuple(10.0 ** (low + stride * k) for k in range(n + 1)), is_log=True)


def wants_log(values: Sequence[float]) -> bool:
    """Tell whether values, none of them negative, span too much for a linear axis."""
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) > 1000 * min(positive)


def _within_range(value: float) -> float:
    """Return a finite value so that the difference of two is finite as well."""
    return min(max(value, -_LARGEST), _LARGEST)


def _round_step(step: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * n for n in (1.0, 2.0, 2.5, 5.0, 10.0) if power * n >= step * (1 - 1e-9))


_LONGEST = 16  # characters of a name on an axis
_WIDTH = 1000  # units of the frame, which is stretched
_AXIS = 40  # pixels of the axis labels
_NARROW, _LANES = 0.12, 5  # fraction of the width: closer names would overlap on a narrow screen
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A series over steps. `tone`: index of its colour, from 0."""

    name: str
    step: Sequence[int]
    value: Values
    tone: int = 0

    @property
    def finite(self) -> list[float]:
        return [v for v in self.value if v is not None and math.isfinite(v)]


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A finding at a step. `anchor`: its details on the page."""

    step: int
    name: str
    anchor: str


def line_chart(
    title: str,
    lines: Sequence[Line],
    marks: Sequence[ChartMark] = (),
    *,
    height: int = 190,
    last: int | None = None,
    labels: Sequence[str] = (),
) -> Html:
    """Return a chart of series on one axis, logarithmic if they span more than three powers of ten.

    Args:
        last: the last step of the axis, if several charts share it.
        labels: names of the places on it, instead of their numbers.
    """
    values = [value for line in lines for value in line.finite]
    most = 5 if height > 120 else 3
    scale = logarithmic(values, most) if wants_log(values) else linear(values, most)
    across = steps(last if last is not None else max((s for line in lines for s in line.step), default=1))
    paths = [
        *_grid(scale, across, height),
        *_flags(marks, across, height),
        _frame([_path(line, across, scale, height) for line in lines], height),
        *_tick_words(scale, across, height, labels),
    ]
    axis = ", logarithmic axis" if scale.is_log else ""
    label = f"{title}{axis}. {'; '.join(map(_in_words, lines))}"
    svg = element(
        "svg", *paths, class_="chart", role="img", aria_label=label, width="100%", height=height + 22
    )
    return element("figure", element("figcaption", title + axis, _legend(lines)), svg)


def spark(values: Values, step: Sequence[int]) -> Html:
    """Return a sparkline over steps, logarithmic if it spans more than three powers of ten.

    Hidden from screen readers, as the row has the same numbers.
    """
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if len(finite) < 2:
        return NOTHING
    ends = _within_range(min(finite)), _within_range(max(finite))
    scale = logarithmic(finite, 400) if wants_log(finite) else AxisScale(ends)
    across = AxisScale((0.0, float(max(*step, 1))))
    line = Html(f'<path d="{_data(step, values, across, scale, 96, 18)}"/>')
    return element("svg", line, class_="spark", viewBox="0 -1 96 20", aria_hidden="true")


def bars(counts: Sequence[int], label: str) -> Html:
    """Return an inline histogram; heights are logarithmic, so that tails are visible."""
    top = math.log1p(max(counts, default=0))
    if not top:
        return NOTHING
    heights = [round(18 * math.log1p(n) / top) for n in counts]
    data = "".join(f"M{2 * i} 18v-{height}" for i, height in enumerate(heights) if height)
    box = f"-1 0 {2 * len(counts)} 18"
    return element(
        "svg", Html(f'<path d="{data}"/>'), class_="bars", role="img", aria_label=label, viewBox=box
    )


def _frame(paths: Sequence[Html], height: int) -> Html:
    box = f"0 0 {_WIDTH} {height}"
    return element("svg", *paths, viewBox=box, preserveAspectRatio="none", width="100%", height=height)


def _path(line: Line, across: AxisScale, scale: AxisScale, height: int) -> Html:
    data = _data(line.step, line.value, across, scale, _WIDTH, height)
    point = " point" if len(line.finite) == 1 else ""
    return element("path", class_=f"line t{line.tone % 4}{point}", d=data)


def _data(
    step: Sequence[int], values: Values, across: AxisScale, scale: AxisScale, width: int, height: int
) -> str:
    """Return path data in whole units relative to the previous point, with gaps for missing numbers."""
    data: list[str] = []
    x, y, level = 0, 0, 0  # pen position, and pending horizontal distance, which is drawn at once

    def lift() -> None:
        """Draw the pending distance; a single point is a dot."""
        if level or (data and data[-1].startswith("M")):
            data.append(f"h{level}")

    is_down = False
    for at, value in zip(step, values, strict=True):
        if value is None or not math.isfinite(value) or (scale.is_log and value <= 0):
            if is_down:
                lift()
            is_down, level = False, 0
            continue
        to_x, to_y = round(width * across.place(at)), round(height * (1 - scale.place(value)))
        if not is_down:
            data.append(f"M{to_x} {to_y}")
        elif to_y == y:
            level += to_x - x
        else:
            data.append((f"h{level}" if level else "") + f"l{to_x - x} {to_y - y}")
            level = 0
        x, y, is_down = to_x, to_y, True
    if is_down:
        lift()
    return "".join(data).replace(" -", "-")


def _grid(scale: AxisScale, across: AxisScale, height: int) -> list[Html]:
    at = [f"{height * (1 - scale.place(tick)):.1f}" for tick in scale.ticks]
    lines = [element("line", class_="grid", x1="0%", x2="100%", y1=y, y2=y) for y in at]
    places = [_share(100 * across.place(tick)) for tick in across.ticks]
    return lines + [element("line", class_="grid", x1=x, x2=x, y1=0, y2=height) for x in places]


def _share(value: float) -> str:
    return f"{value:.6g}%"


def _tick_words(scale: AxisScale, across: AxisScale, height: int, labels: Sequence[str]) -> list[Html]:
    """Return the tick labels: values on their lines, except the lowest, which would overlap the steps."""
    at = [f"{max(height * (1 - scale.place(tick)) - 4, 11):.1f}" for tick in scale.ticks]
    values = zip(scale.ticks, at, strict=True)
    words = [element("text", f"{tick:.6g}", class_="halo", x=4, y=y) for tick, y in values]
    for n, tick in enumerate(across.ticks):
        end = n == len(across.ticks) - 1
        if labels and tick >= len(labels):
            continue
        anchor = "start" if n == 0 else "end" if end else "middle"
        place, kind = _share(100 * across.place(tick)), "between" if labels and n % 3 and not end else None
        word = f"step {tick:g}" if end else f"{tick:g}"
        word = shortened(labels[int(tick)], _LONGEST) if labels else word
        words.append(element("text", word, x=place, y=height + 16, text_anchor=anchor, class_=kind))
    return words


def _flags(marks: Sequence[ChartMark], across: AxisScale, height: int) -> list[Html]:
    """Return a line and a label for each; labels that would overlap the last one move up."""
    flags, before, lane = [], -1.0, 0
    for mark in marks:
        place = across.place(mark.step)
        lane = (lane + 1) % _LANES if place - before < _NARROW else 0
        before = place
        x, is_late = _share(100 * place), place > 0.85
        rule = element("line", class_="mark", x1=x, x2=x, y1=0, y2=height)
        # Next to the line: on its left at the right end, and clear of the axis labels at the left end.
        aside = -4 if is_late else _AXIS if place < _NARROW / 4 else 4
        y, anchor = height - 8 - 14 * lane, "end" if is_late else None
        word = element("text", mark.name, x=x, dx=aside, y=y, text_anchor=anchor)
        flags.append(element("a", rule, word, href=f"#{mark.anchor}", class_="flag"))
    return flags


def _legend(lines: Sequence[Line]) -> Html | None:
    keys = [element("span", line.name, class_=f"key t{line.tone % 4}") for line in lines]
    return element("span", *keys, class_="keys") if len(lines) > 1 else None


def _in_words(line: Line) -> str:
    finite = line.finite
    if not finite:
        return f"{line.name}: no finite value"
    first, last, low, high = map(numbers.number, (finite[0], finite[-1], min(finite), max(finite)))
    return f"{line.name}: {first} at first, {last} at the end, from {low} to {high}"
