"""Figures over the steps of a training: curves, heat maps, depth legend, marks of findings."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modelscope_cli.records.naming import is_rectifier
from modelscope_cli.records.watch import ScalarSeries, TrainingFinding, WatchedLayer, WatchedParameter
from modelscope_cli.report.canvas import ACCENT, AMBER, INK, MISSING, axes_at
from modelscope_cli.report.labels import shortened
from modelscope_cli.report.layer_axis import MOST_ACROSS, POINTS, ROW, Name, write_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Row = WatchedLayer | WatchedParameter
Read = Callable[[Any], Sequence[float | None]]
_COLUMNS = 1200  # of a heat map; more would not be visible


def floats(values: Sequence[float | None]) -> list[float]:
    """Return a series for matplotlib, with NaN for missing numbers."""
    return [math.nan if value is None else value for value in values]


def plot_series(axes: Any, step: Sequence[int], values: Sequence[float | None], **look: Any) -> list[Any]:
    """Draw a series over steps; an isolated number, invisible as a line, is a dot."""
    valid = [False, *(value is not None and math.isfinite(value) for value in values), False]
    alone = [n - 1 for n in range(1, len(valid) - 1) if valid[n] and not valid[n - 1] and not valid[n + 1]]
    dots = {"marker": ".", "markevery": alone} if alone else {}
    lines: list[Any] = axes.plot(step, floats(values), **dots, **look)
    return lines


def all_steps(rows: Sequence[Row]) -> list[int]:
    """Return every step at which any of these rows was recorded."""
    return sorted({step for row in rows for step in row.series.step})


def rectifiers(layers: Sequence[WatchedLayer]) -> list[WatchedLayer]:
    return [row for row in layers if is_rectifier(row.type)]


def matrices(parameters: Sequence[WatchedParameter]) -> list[WatchedParameter]:
    """Return the trained parameters of more than one dimension; all trained ones if there are none."""
    trained = [row for row in parameters if row.series.step]
    return [row for row in trained if len(row.shape) > 1] or trained


def grid_of(rows: Sequence[Row], steps: Sequence[int], read: Read) -> Any:
    """Return one series of each row as `(rows, steps)`, NaN for missing numbers."""
    import numpy as np

    place = {step: i for i, step in enumerate(steps)}
    grid = np.full((len(rows), len(steps)), math.nan)
    for line, row in zip(grid, rows, strict=True):
        line[[place[step] for step in row.series.step]] = floats(read(row.series))
    return grid


def draw_heat(axes: Any, grid: Any, steps: Sequence[int], **look: Any) -> Any:
    """Draw `(rows, steps)` as colours over an axis that is linear in steps; return the mappable.

    A recorded step extends halfway to its neighbours, as steps are not evenly spaced.
    """
    import numpy as np

    edges = _edges(steps)
    middles = edges[0] + (edges[-1] - edges[0]) * (np.arange(_COLUMNS) + 0.5) / _COLUMNS
    columns = np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, len(steps) - 1)
    bottom, top = (-0.5, len(grid) - 0.5) if look.get("origin") == "lower" else (len(grid) - 0.5, -0.5)
    look["extent"] = (edges[0], edges[-1], bottom, top)
    axes.set_facecolor(MISSING)
    axes.set_xlabel("step")
    whole_steps(axes)
    return axes.imshow(grid[:, columns], aspect="auto", interpolation="nearest", **look)


def step_limits(steps: Sequence[int]) -> tuple[float, float]:
    """Return the limits of the axis of steps."""
    edges = _edges(steps)
    return float(edges[0]), float(edges[-1])


def _edges(steps: Sequence[int]) -> Any:
    import numpy as np

    at = np.asarray(steps, dtype=float)
    return np.concatenate([[at[0] - 0.5], (at[:-1] + at[1:]) / 2, [at[-1] + 0.5]])


def whole_steps(axes: Any) -> None:
    """Label whole steps only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Return the exponential moving average with weight 0.9 and bias correction."""
    averages: list[float | None] = []
    total = weight = 0.0
    for value in values:
        if value is None:
            averages.append(None)
            continue
        total, weight = 0.9 * total + 0.1 * value, 0.9 * weight + 0.1
        averages.append(total / weight)
    return averages


def draw_rates(axes: Any, rates: Sequence[ScalarSeries]) -> list[Any]:
    """Draw the learning rate of the first group of every optimizer on a second scale at the right.

    Returns:
        The lines, for a legend.
    """
    first = [one for one in rates if one.group == 0]
    if not first:
        return []
    right = axes.twinx()
    lines = []
    for one in first:
        label = "learning rate" + (f" of {one.optimizer}" if len(first) > 1 else "")
        lines += plot_series(right, one.step, one.value, color=AMBER, lw=1.0, ls="--", label=label)
    positive = [value for one in first for value in one.value if value]
    if positive and max(positive) > 100 * min(positive):
        right.set_yscale("log")
    else:
        right.set_ylim(bottom=0)
    right.set_ylabel("learning rate", color=AMBER, fontsize=8)
    right.tick_params(labelsize=7, labelcolor=AMBER)
    right.spines[["top"]].set_visible(False)
    return lines


def cut_off(axes: Any, values: Sequence[float | None], also: Sequence[float | None] = ()) -> None:
    """Limit the axis to typical values, and note what is cut off.

    Args:
        values: determine the typical range; `also`: further values drawn with them.
    """
    finite, others = _finite(values), _finite(also)
    if not finite:
        return
    usual = finite[int(0.95 * (len(finite) - 1))]
    highest = max([*finite, *others])
    if highest > 8 * usual > 0:
        axes.set_ylim(min(0.0, finite[0]), 3 * usual)
        say_cut(axes, highest)


def _finite(values: Sequence[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None and math.isfinite(value))


def say_cut(axes: Any, farthest: float, *, is_below: bool = False) -> None:
    """Note that values exceed the upper edge, or the lower one, and how far."""
    words, place, side = ("down", 0.015, "bottom") if is_below else ("up", 0.985, "top")
    look: dict[str, Any] = {"xycoords": "axes fraction", "ha": "right", "va": side, "color": ACCENT}
    look["bbox"] = {"fc": "white", "ec": "none", "alpha": 0.85, "pad": 1.0}  # on top of lines
    axes.annotate(f"cut off here: {words} to {farthest:.3g}", (0.99, place), fontsize=7.5, **look)


ABOVE = 0.5  # inches above a map, for its title and the steps of a tall one
KEY_ROOM = 0.75  # inches at its right, for the colour bar
_KEY, _KEY_HEIGHT, _KEY_GAP = 0.14, 4.0, 0.1
_WIDE_ROW = 0.26  # with few rows


def height_of(n: int) -> float:
    """Return the height of a map of `n` rows in inches."""
    return n * (ROW if n > MOST_ACROSS else _WIDE_ROW)


def draw_map(
    figure: "Figure",
    place: tuple[float, float, float],
    grid: Any,
    steps: Sequence[int],
    names: Sequence[Name],
    title: str,
    **look: Any,
) -> tuple[Any, Any]:
    """Draw `(rows, steps)` with its upper left corner and width at `place`, in inches.

    Args:
        names: row names, written to the left of `place`; empty if a neighbour has them.

    Returns:
        Its axes and its mappable.
    """
    left, top, width = place
    axes = axes_at(figure, left, top, width, height_of(len(grid)))
    image = draw_heat(axes, grid, steps, **look)
    if len(grid) > MOST_ACROSS:  # repeat the steps at the top
        axes.tick_params(axis="x", top=True, labeltop=True)
        title = f"{title}, over the steps" if title else "over the steps"
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    if names:
        write_names(axes, names)
    else:
        axes.set_yticks([])
    return axes, image


def draw_key(
    figure: "Figure", left: float, top: float, n_rows: int, image: Any, label: str = "", **how: Any
) -> Any:
    """Draw the colour bar, with a limited height."""
    axes = axes_at(figure, left + _KEY_GAP, top, _KEY, min(height_of(n_rows), _KEY_HEIGHT))
    key = figure.colorbar(image, cax=axes, label=label, **how)
    key.ax.tick_params(labelsize=POINTS)
    return key


def name_powers(key: Any, low: int, high: int) -> None:
    """Label a colour bar of log10 values from 10^low to 10^high."""
    powers = list(range(low, high + 1))
    labelled = powers[:: -(-len(powers) // 8)]
    key.set_ticks(labelled, labels=[f"1e{power}" for power in labelled])


_NAME = 0.2  # inches from a name to the next
_DEPTH_KEY = 0.14


@lru_cache(maxsize=1)
def _colours() -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap([colormaps["viridis"](i / 280) for i in range(256)])


def depth_colour(number: int, n: int) -> Any:
    """Return the colour of layer `number` of `n`, without the palest ones, invisible on white."""
    return _colours()(number / max(n - 1, 1))


def draw_depth_key(figure: "Figure", place: tuple[float, float, float], labels: Sequence[str]) -> None:
    """Draw the legend of layer colours; `place`: left edge, upper edge and height in inches."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    left, top, height = place
    axes = axes_at(figure, left, top, _DEPTH_KEY, height)
    key = figure.colorbar(ScalarMappable(Normalize(0, max(len(labels) - 1, 1)), _colours()), cax=axes)
    stride = -(-len(labels) // max(int(height / _NAME), 1))
    names = [shortened(label) for label in labels[::stride]]
    key.set_ticks(list(range(0, len(labels), stride)), labels=names, fontsize=POINTS)
    key.ax.invert_yaxis()


def room_for_key(labels: Sequence[str]) -> float:
    """Return the approximate width of the legend in inches."""
    return 0.3 + max((len(shortened(label)) for label in labels), default=0) * POINTS * 0.62 / 72


_POINTS, _LEVEL = 7.5, 10  # points: the font size, and from one level of codes to the next
_LEVELS = 4
_CODES = 2  # at one step or row; the others are counted
_APART = 0.15  # inches around the codes of a row
_LETTER = 0.62 * _POINTS / 72  # approximate width in inches


def codes(findings: Iterable[TrainingFinding]) -> str:
    """Return the codes of findings, each once: `MS705 MS706 +2`."""
    every = list(dict.fromkeys(finding.code for finding in findings))
    more = len(every) - _CODES
    return " ".join(every[:_CODES]) + (f" +{more}" if more > 0 else "")


def mark_steps(panels: Sequence[Any], findings: Sequence[TrainingFinding], width: float) -> Any:
    """Draw a dotted line through all panels at each step where findings begin, with their codes on top.

    Args:
        panels: from top to bottom, with the limits of their steps set.
        width: width of the panels in inches.

    Returns:
        One of the lines, for a legend; None without findings.
    """
    by_step: dict[int, list[TrainingFinding]] = {}
    for finding in findings:
        if finding.since_step is not None:
            by_step.setdefault(finding.since_step, []).append(finding)
    steps = sorted(by_step)
    texts = [codes(by_step[step]) for step in steps]
    low, high = panels[0].get_xlim()
    spans = [
        _span(step, text, high, _LETTER * (high - low) / width)
        for step, text in zip(steps, texts, strict=True)
    ]
    line = None
    for step, text, span, level in zip(steps, texts, spans, _levels(spans), strict=True):
        for axes in panels:
            line = axes.axvline(step, color=ACCENT, lw=0.8, ls=":", label="first step of a finding")
        if level is not None:
            _write(panels[0], step, text, level, is_right=span[0] < step)
    return line


def n_levels(findings: Sequence[TrainingFinding]) -> int:
    """Return the most levels of codes that `mark_steps` may need."""
    return min(_LEVELS, len({finding.since_step for finding in findings} - {None}))


def _span(step: int, text: str, high: float, letter: float) -> tuple[float, float]:
    """Return the extent of a text: to the right of its step, or to the left at the right edge."""
    length = (len(text) + 1) * letter
    return (step - length, step) if step + length > high else (step, step + length)


def _levels(spans: Sequence[tuple[float, float]]) -> list[int | None]:
    """Return for each text the lowest level without overlap; None if there is no room."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_LEVELS)]
    levels: list[int | None] = []
    for start, end in spans:
        level = next((i for i, row in enumerate(taken) if all(end <= a or b <= start for a, b in row)), None)
        levels.append(level)
        if level is not None:
            taken[level].append((start, end))
    return levels


def _write(axes: Any, step: int, text: str, level: int, *, is_right: bool) -> None:
    axes.annotate(
        text,
        (step, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-2 if is_right else 2, 3 + _LEVEL * level),
        textcoords="offset points",
        ha="right" if is_right else "left",
        va="bottom",
        fontsize=_POINTS,
        color=ACCENT,
        annotation_clip=False,
    )


def by_layer(findings: Iterable[TrainingFinding]) -> dict[str, list[TrainingFinding]]:
    """Return the findings by label of the layer or parameter."""
    by_label: dict[str, list[TrainingFinding]] = {}
    for finding in findings:
        if finding.layer is not None:
            by_label.setdefault(finding.layer, []).append(finding)
    return by_label


def mark_rows(
    axes: Any, labels: Sequence[str], findings: Mapping[str, Sequence[TrainingFinding]], low: float
) -> None:
    """Mark findings on a map with one row per layer: a triangle at their first step, codes at the right."""
    for place, label in enumerate(labels):
        row_findings = findings.get(label, ())
        if not row_findings:
            continue
        since = [finding.since_step for finding in row_findings if finding.since_step is not None]
        if since:
            look = {"ms": 6, "mfc": ACCENT, "mec": "white", "mew": 0.7, "zorder": 5, "clip_on": False}
            axes.plot([max(min(since), low)], [place], ">", **look)
        axes.annotate(
            codes(row_findings),
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=_POINTS,
            color=ACCENT,
            annotation_clip=False,
        )


def room_for_codes(labels: Sequence[str], findings: Mapping[str, Sequence[TrainingFinding]]) -> float:
    """Return the inches that `mark_rows` needs at the right."""
    longest = max((len(codes(findings[label])) for label in labels if label in findings), default=0)
    return longest * _LETTER + (_APART if longest else 0.0)


def explain_marks(
    figure: Any, place: tuple[float, float], missing: str, marks: Sequence[Any], *, is_marked: bool
) -> None:
    """Draw the legend of a page of heat maps; `place` in inches from the left and the top.

    Args:
        missing: the meaning of gray; `marks`: further handles of the maps.
        is_marked: whether rows are marked with findings.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=MISSING, label=missing), *marks]
    if is_marked:
        look: dict[str, Any] = {"ls": "", "marker": ">", "mfc": ACCENT, "mec": "white"}
        handles.append(Line2D([], [], **look, label="first step of a finding, and its code"))
    width, height = figure.get_size_inches()
    look = {"ncols": len(handles), "frameon": False, "fontsize": 8, "borderaxespad": 0.0}
    corner = (place[0] / width, 1 - place[1] / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, **look)
