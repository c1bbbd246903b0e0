"""Figures along the depth of a model: layer names on a shared axis, and stacked panels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from modelscope_cli.library_types import Figure
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import block_of, layer_of
from modelscope_cli.report.canvas import ABOVE, INK, any_letters, axes_at, fitted, new_figure
from modelscope_cli.report.numbers import shortened

MOST_ACROSS = 40  # layers with legible names side by side
POINTS = 8.2  # at 130 dots an inch a small letter is 8 pixels high
ROW = 0.16  # inches from one name to the next
GAP = 0.1  # inches between blocks, names and figure
FAINT = "#6b7385"
BAND = "#f3f5f9"  # behind every second block


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a row, and its block of the network; empty if there is none."""

    text: str
    block: str = ""

    @property
    def within(self) -> str:
        """The name inside its block."""
        return self.text.removeprefix(f"{self.block}.") if self.block else self.text


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """A run of rows of one block: the first, and one past the last."""

    block: str
    start: int
    stop: int


def layer_names(labels: Iterable[str]) -> list[Name]:
    return [Name(label, block_of(label)) for label in map(plain, labels)]


def parameter_names(names: Iterable[str]) -> list[Name]:
    return [Name(name, block_of(layer_of(name))) for name in map(plain, names)]


def groups_of(names: Sequence[Name]) -> list[LayerGroup]:
    """Return the runs of rows of one block, in order."""
    starts = [i for i, name in enumerate(names) if i == 0 or name.block != names[i - 1].block]
    return [LayerGroup(names[start].block, start, stop) for start, stop in pairwise([*starts, len(names)])]


def room_for(figure: Figure, names: Sequence[Name]) -> float:
    """Return the inches that `write_names` needs on the left."""
    texts, blocks = _written(names)
    return _widest(figure, texts) + (_widest(figure, blocks) + GAP if blocks else 0.0) + 2.5 * GAP


def write_names(axes: Any, names: Sequence[Name]) -> None:
    """Write a name to the left of every row of axes, and the blocks of a deep network to the left of that."""
    from matplotlib.transforms import ScaledTranslation

    def write(row: int, text: str, inches: float, colour: str) -> None:
        place = axes.get_yaxis_transform() + ScaledTranslation(-inches, 0, axes.figure.dpi_scale_trans)
        look = {"ha": "right", "va": "center_baseline", "fontsize": POINTS, "color": colour}
        axes.text(0, row, text, transform=place, **look)

    texts, _ = _written(names)
    axes.set_yticks([])  # a tick for each name would take twice as long as its text
    for row, text in enumerate(texts):
        write(row, text, GAP, "black")
    if len(names) > MOST_ACROSS:
        away = _widest(axes.figure, texts) + 2 * GAP
        for group in groups_of(names):
            write(group.start, shortened(group.block), away, FAINT)


def _written(names: Sequence[Name]) -> tuple[list[str], list[str]]:
    """Return the texts of the names, and of their blocks."""
    if len(names) <= MOST_ACROSS:
        return [shortened(name.text) for name in names], []
    return [shortened(name.within) for name in names], [shortened(group.block) for group in groups_of(names)]


def _widest(figure: Figure, texts: Iterable[str]) -> float:
    from matplotlib.font_manager import FontProperties

    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # set to Agg
    font = FontProperties(size=POINTS)
    with any_letters():
        widths = [renderer.get_text_width_height_descent(plain(text), font, False)[0] for text in set(texts)]
    return max(widths, default=0.0) / figure.dpi


WIDTH = 15.0  # inches: 1,950 pixels at 130 dots
_LEAST = 6  # rows of a panel, which has that height at least
# Inches around the panels, and above a panel.
_TITLE, _FOOT, _RIGHT, _BETWEEN = 0.4, 0.95, 0.35, 0.7
_WORDS, _LEGEND, _LINE = 0.32, 0.56, 0.19
_BOTH_ENDS: dict[str, Any] = {"axis": "x", "top": True, "labeltop": True}


class Panel:
    """Axes with a row for every layer, from top to bottom, and values from left to right."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes

    def say(self, words: str) -> None:
        """Label the values at the bottom and at the top."""
        self.axes.set_xlabel(words)
        self.axes.text(0, self._above(_WORDS), words, transform=self.axes.transAxes, color=INK)

    def grid(self) -> None:
        """Draw faint grid lines at the values, behind everything."""
        self.axes.grid(axis="x", lw=0.4, alpha=0.5)
        self.axes.set_axisbelow(True)

    def legend(self, **more: Any) -> None:
        """Draw the legend above the panel, in two columns."""
        place = {"loc": "lower left", "bbox_to_anchor": (0.0, self._above(_LEGEND)), "borderaxespad": 0.0}
        handles = more.get("handles") or self.axes.get_legend_handles_labels()[0]
        columns = min(max(len(handles), 1), 2)
        self.axes.legend(**{**ABOVE, **place, **more, "ncols": columns}, columnspacing=1.2, handlelength=1.6)

    def _above(self, inches: float) -> float:
        """Return a position above the panel in fractions of its height."""
        return 1 + inches / (self.axes.get_position().height * self.axes.figure.get_figheight())


def layer_panels(
    title: str, names: Sequence[Sequence[Name]], ratios: Sequence[float], legend_lines: int = 2
) -> tuple[Figure, list[Panel]]:
    """Return a figure with panels side by side, one row per layer.

    Args:
        names: layer names, once for all panels or once per panel.
        ratios: widths of the panels.
        legend_lines: number of two-column lines of the longest legend.
    """
    title = fitted(title, WIDTH)
    head = _TITLE + _LINE * (title.count("\n") + legend_lines) + _LEGEND
    height = ROW * max(_LEAST, *map(len, names))
    figure = new_figure(WIDTH, head + height + _FOOT, title, is_laid_out=False)
    written = [*names, *[()] * (len(ratios) - len(names))]
    rooms = [room_for(figure, panel_names) if panel_names else _BETWEEN for panel_names in written]
    free = WIDTH - sum(rooms) - _RIGHT - 0.1
    panels = []
    left = 0.1
    for n, (panel_names, room, ratio) in enumerate(zip(written, rooms, ratios, strict=True)):
        rows = names[min(n, len(names) - 1)]
        width = free * ratio / sum(ratios)
        left += room
        axes = axes_at(figure, left, head, width, ROW * max(len(rows), _LEAST))
        left += width
        # Ticks are at both ends without an offset, which only the bottom would show
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        write_names(axes, panel_names)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(**_BOTH_ENDS)
        for group in groups_of(rows)[1::2]:
            axes.axhspan(group.start - 0.5, group.stop - 0.5, color=BAND, zorder=-2, lw=0)
        panels.append(Panel(axes))
    return figure, panels
