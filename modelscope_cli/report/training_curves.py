"""What the figures of a training are made of, of one that we ran or of one that was watched: series over steps."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from modelscope_cli.records.naming import is_rectifier
from modelscope_cli.records.watch import ScalarSeries, WatchedLayer, WatchedParameter
from modelscope_cli.report.canvas import ACCENT, AMBER, MISSING

Row = WatchedLayer | WatchedParameter
Read = Callable[[Any], Sequence[float | None]]
_COLUMNS = 1200  # of a picture of series; more would not be seen


def floats(values: Sequence[float | None]) -> list[float]:
    """Return a series as matplotlib draws it: with a gap where a number is missing."""
    return [math.nan if value is None else value for value in values]


def plot_series(axes: Any, step: Sequence[int], values: Sequence[float | None], **look: Any) -> list[Any]:
    """Draw a series over steps; a number that is alone, of which a line would show nothing, is a dot."""
    known = [False, *(value is not None and math.isfinite(value) for value in values), False]
    alone = [n - 1 for n in range(1, len(known) - 1) if known[n] and not known[n - 1] and not known[n + 1]]
    dots = {"marker": ".", "markevery": alone} if alone else {}
    lines: list[Any] = axes.plot(step, floats(values), **dots, **look)
    return lines


def all_steps(rows: Sequence[Row]) -> list[int]:
    """Return every step at which one of these was recorded."""
    return sorted({step for row in rows for step in row.series.step})


def rectifiers(layers: Sequence[WatchedLayer]) -> list[WatchedLayer]:
    return [row for row in layers if is_rectifier(row.type)]


def matrices(parameters: Sequence[WatchedParameter]) -> list[WatchedParameter]:
    """Return the weights that were trained; biases and norms live on another scale, and are what is left."""
    trained = [row for row in parameters if row.series.step]
    return [row for row in trained if len(row.shape) > 1] or trained


def grid_of(rows: Sequence[Row], steps: Sequence[int], read: Read) -> Any:
    """Return one series of each row as `(rows, steps)`, NaN where a row has no number."""
    import numpy as np

    place = {step: i for i, step in enumerate(steps)}
    grid = np.full((len(rows), len(steps)), math.nan)
    for line, row in zip(grid, rows, strict=True):
        line[[place[step] for step in row.series.step]] = floats(read(row.series))
    return grid


def draw_heat(axes: Any, grid: Any, steps: Sequence[int], **look: Any) -> Any:
    """Draw `(rows, steps)` as colours over an axis that is linear in steps; return what a colour key is made of.

    A recorded step reaches half-way to its neighbours: they are not evenly spaced.
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
    """Return between what the axis of the steps runs."""
    edges = _edges(steps)
    return float(edges[0]), float(edges[-1])


def _edges(steps: Sequence[int]) -> Any:
    import numpy as np

    at = np.asarray(steps, dtype=float)
    return np.concatenate([[at[0] - 0.5], (at[:-1] + at[1:]) / 2, [at[-1] + 0.5]])


def whole_steps(axes: Any) -> None:
    """Name whole steps only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Average exponentially with weight 0.9, corrected for the beginning."""
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
    """Draw the learning rate of the first group of every optimizer on a scale of its own, at the right.

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
    known = [value for one in first for value in one.value if value]
    if known and max(known) > 100 * min(known):
        right.set_yscale("log")
    else:
        right.set_ylim(bottom=0)
    right.set_ylabel("learning rate", color=AMBER, fontsize=8)
    right.tick_params(labelsize=7, labelcolor=AMBER)
    right.spines[["top"]].set_visible(False)
    return lines


def cut_off(axes: Any, values: Sequence[float | None], also: Sequence[float | None] = ()) -> None:
    """Keep one enormous value from flattening everything else, and say what is cut off.

    Args:
        values: that say what is usual; `also`: that are drawn beside them.
    """
    known, others = _finite(values), _finite(also)
    if not known:
        return
    usual = known[int(0.95 * (len(known) - 1))]
    highest = max([*known, *others])
    if highest > 8 * usual > 0:
        axes.set_ylim(min(0.0, known[0]), 3 * usual)
        say_cut(axes, highest)


def _finite(values: Sequence[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None and math.isfinite(value))


def say_cut(axes: Any, farthest: float, *, is_below: bool = False) -> None:
    """Say that values lie above the upper edge, or below the lower one, and how far they go."""
    words, place, side = ("down", 0.015, "bottom") if is_below else ("up", 0.985, "top")
    look: dict[str, Any] = {"xycoords": "axes fraction", "ha": "right", "va": side, "color": ACCENT}
    look["bbox"] = {"fc": "white", "ec": "none", "alpha": 0.85, "pad": 1.0}  # lines run behind it
    axes.annotate(f"cut off here: {words} to {farthest:.3g}", (0.99, place), fontsize=7.5, **look)
