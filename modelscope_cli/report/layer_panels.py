"""Figures with a mark a layer: from left to right, or, of a deep network, downwards so that every name can be read.

What draws them says what stands at which place and how high; a `Panel` knows which way that is.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelscope_cli.report.canvas import ABOVE, INK, axes_at, fitted, new_figure
from modelscope_cli.report.labels import shortened
from modelscope_cli.report.layer_names import (
    MOST_ACROSS,
    POINTS,
    ROW,
    Name,
    band_blocks,
    room_for,
    write_names,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 15.0  # inches of a deep figure: 1,950 pixels at 130 dots
_LEAST, _SIDE = 8.0, 2.5  # inches of a figure from left to right, and of what is beside its layers
_NAMES = 1.2  # inches for names below one of its panels; it grows by what they take more
# Inches around the panels of a deep one, and from a panel up to what stands above it.
_TITLE, _FOOT, _RIGHT, _BETWEEN = 0.4, 0.95, 0.35, 0.7
_WORDS, _LEGEND, _LINE = 0.32, 0.56, 0.19
_BOTH_ENDS: dict[str, Any] = {"axis": "x", "top": True, "labeltop": True}


class Panel:
    """Axes of which one axis counts layers and the other one is a value."""

    def __init__(self, axes: Any, is_down: bool) -> None:
        self.axes = axes
        self.is_down = is_down

    def plot(self, places: Sequence[float], values: Sequence[float], *style: str, **look: Any) -> None:
        """Draw a line or marks."""
        self.axes.plot(*self._xy(places, values), *style, **look)

    def bars(self, places: Sequence[float], values: Sequence[float], **look: Any) -> None:
        """Draw bars that begin at 0; a layer has a width of 1."""
        if self.is_down:
            self.axes.barh(places, values, height=look.pop("width"), **look)
        else:
            self.axes.bar(places, values, **look)

    def spread(self, places: Any, values: Any, by: Any, **look: Any) -> None:
        """Draw points with a bar of `by` to each side."""
        x, y = self._xy(places, values)
        self.axes.errorbar(x, y, **({"xerr": by} if self.is_down else {"yerr": by}), **look)

    def boxes(self, corners: Any, **look: Any) -> None:
        """Draw filled polygons, `(n, 4, 2)` of place and value."""
        from matplotlib.collections import PolyCollection

        self.axes.add_collection(PolyCollection(corners[..., ::-1] if self.is_down else corners, **look))

    def level(self, value: float, **look: Any) -> None:
        """Draw a line at a value, through all layers."""
        (self.axes.axvline if self.is_down else self.axes.axhline)(value, **look)

    def mark(self, place: float, **look: Any) -> None:
        """Draw a line at a layer, through all values."""
        (self.axes.axhline if self.is_down else self.axes.axvline)(place, **look)

    def scale(self, kind: str, **how: Any) -> None:
        (self.axes.set_xscale if self.is_down else self.axes.set_yscale)(kind, **how)

    def limits(self, low: float | None, high: float | None) -> None:
        (self.axes.set_xlim if self.is_down else self.axes.set_ylim)(low, high)

    def say(self, words: str) -> None:
        """Name the value; of a tall panel above it too, where one begins to read."""
        if not self.is_down:
            self.axes.set_ylabel(words)
            return
        self.axes.set_xlabel(words)
        self.axes.text(0, self._above(_WORDS), words, transform=self.axes.transAxes, color=INK)

    def grid(self) -> None:
        """Draw faint lines at the values, behind everything."""
        self.axes.grid(axis="x" if self.is_down else "y", lw=0.4, alpha=0.5)
        self.axes.set_axisbelow(True)

    def without_minor_numbers(self) -> None:
        (self.axes.xaxis if self.is_down else self.axes.yaxis).set_minor_formatter(lambda value, _: "")

    def other_scale(self, low: float, high: float, words: str) -> None:
        """Show a second unit: `low` and `high` stand where the limits of the value are."""
        if self.is_down:
            other = self.axes.twiny()
            other.xaxis.set_ticks_position("bottom")
            other.xaxis.set_label_position("bottom")
            other.spines["bottom"].set_position(("outward", 36))
            other.set_xlim(low, high)
            other.set_xlabel(words)
            self.axes.tick_params(**_BOTH_ENDS)  # another axis takes the upper end away
        else:
            other = self.axes.twinx()
            other.set_ylim(low, high)
            other.set_ylabel(words)

    def legend(self, **more: Any) -> None:
        """Explain the marks, where that covers nothing."""
        if not self.is_down:
            self.axes.legend(**ABOVE, **more)
            return
        place = {"loc": "lower left", "bbox_to_anchor": (0.0, self._above(_LEGEND)), "borderaxespad": 0.0}
        handles = more.get("handles") or self.axes.get_legend_handles_labels()[0]
        self.axes.legend(
            **{**ABOVE, **place, **more, "ncols": _columns(len(handles))}, columnspacing=1.2, handlelength=1.6
        )

    def _above(self, inches: float) -> float:
        """Return so far above the panel in shares of its height."""
        return 1 + inches / (self.axes.get_position().height * self.axes.figure.get_figheight())

    def _xy(self, places: Any, values: Any) -> tuple[Any, Any]:
        return (values, places) if self.is_down else (places, values)


def _columns(n: int) -> int:
    return 2 if n > 2 else max(n, 1)


def layer_panels(
    title: str,
    names: Sequence[Sequence[Name]],
    ratios: Sequence[float],
    height: float,
    legend_lines: int = 2,
) -> tuple["Figure", list[Panel]]:
    """Return a figure of one panel for each of `ratios`, with the names of their layers.

    Args:
        names: of the layers, once for all panels, or once a panel.
        ratios: heights of the panels, or their widths where layers go downwards.
        height: inches of the figure where layers go from left to right.
        legend_lines: how many lines of two the longest legend has where they go downwards.
    """
    longest = max((len(some) for some in names), default=0)
    if longest > MOST_ACROSS:
        return _downwards(title, names, ratios, legend_lines)
    figure = new_figure(max(_LEAST, ROW * longest + _SIDE), height, title)
    figure.set_figheight(height + sum(max(room_for(figure, some) - _NAMES, 0.0) for some in names))
    rows = figure.subplots(len(ratios), 1, sharex=len(names) == 1, height_ratios=list(ratios), squeeze=False)
    for axes, some in zip(rows[:, 0], _each(names, len(ratios)), strict=True):
        texts = [shortened(name.text) for name in some or ()]
        if some is not None:
            axes.set_xticks(range(len(texts)), texts, rotation=90, fontsize=POINTS)
        axes.set_xlim(-0.7, max(longest if some is None else len(texts), 1) - 0.3)
    return figure, [Panel(axes, is_down=False) for axes in rows[:, 0]]


def _each(names: Sequence[Sequence[Name]], n: int) -> list[Sequence[Name] | None]:
    """Return the names written at each of the panels from left to right: where all share them, at the last."""
    return list(names) if len(names) == n else [*[None] * (n - 1), names[0]]


def _downwards(
    title: str, names: Sequence[Sequence[Name]], ratios: Sequence[float], legend_lines: int
) -> tuple["Figure", list[Panel]]:
    longest = max(len(some) for some in names)
    title = fitted(title, WIDTH)
    head = _TITLE + _LINE * (title.count("\n") + legend_lines) + _LEGEND
    whole = head + ROW * longest + _FOOT
    figure = new_figure(WIDTH, whole, title, is_laid_out=False)
    written = [*names, *[()] * (len(ratios) - len(names))]
    rooms = [room_for(figure, some) if some else _BETWEEN for some in written]
    free = WIDTH - sum(rooms) - _RIGHT - 0.1
    panels = []
    left = 0.1
    for some, room, ratio in zip(written, rooms, ratios, strict=True):
        rows = len(some or names[0])
        width = free * ratio / sum(ratios)
        left += room
        axes = axes_at(figure, left, head, width, ROW * rows)
        left += width
        _prepare(axes, some, rows)
        band_blocks(axes, some or names[0])
        panels.append(Panel(axes, is_down=True))
    return figure, panels


def _prepare(axes: Any, names: Sequence[Name], rows: int) -> None:
    """The numbers of a tall panel stand above it, where one begins to read, and below.

    Each is whole: a power of ten that all have in common would stand below only.
    """
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if names:
        write_names(axes, names)
    else:
        axes.set_yticks([])
    axes.set_ylim(rows - 0.4, -0.6)
    axes.tick_params(**_BOTH_ENDS)
