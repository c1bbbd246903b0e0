"""How figures draw the panels of a training: lines, heat maps, the legend of layers, marks of findings."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from modelscope_cli.library_types import Figure
from modelscope_cli.records.watch import TrainingFinding, WatchedParameter, labelling
from modelscope_cli.report.canvas import ACCENT, AMBER, INK, LINE, MISSING, axes_at, fitted, new_figure
from modelscope_cli.report.layer_axis import (
    MOST_ACROSS,
    POINTS,
    ROW,
    Name,
    layer_names,
    parameter_names,
    room_for,
    write_names,
)
from modelscope_cli.report.training_panels import (
    HeatMap,
    Line,
    Trained,
    TrainingCurves,
    all_steps,
    by_layer,
    by_step,
    curves_of,
    finite,
    floats,
    heat_map,
    smoothed,
)


def plot_series(axes: Any, step: Sequence[int], values: Sequence[float | None], **look: Any) -> list[Any]:
    """Draw a series over steps; an isolated number, invisible as a line, is a dot."""
    valid = [False, *(value is not None and math.isfinite(value) for value in values), False]
    alone = [n - 1 for n in range(1, len(valid) - 1) if valid[n] and not valid[n - 1] and not valid[n + 1]]
    dots = {"marker": ".", "markevery": alone} if alone else {}
    lines: list[Any] = axes.plot(step, floats(values), **dots, **look)
    return lines


_COLUMNS = 1200  # of a heat map; more would not be visible


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


def _edges(steps: Sequence[int]) -> Any:
    import numpy as np

    at = np.asarray(steps, dtype=float)
    return np.concatenate([[at[0] - 0.5], (at[:-1] + at[1:]) / 2, [at[-1] + 0.5]])


def whole_steps(axes: Any) -> None:
    """Label whole steps only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))


def cut_off(axes: Any, values: Sequence[float | None], also: Sequence[float | None] = ()) -> None:
    """Limit the axis to typical values, and note what is cut off.

    Args:
        values: determine the typical range; `also`: further values drawn with them.
    """
    if not (ordered := sorted(finite(values))):
        return
    usual = ordered[int(0.95 * (len(ordered) - 1))]
    highest = max([*ordered, *finite(also)])
    if highest > 8 * usual > 0:
        axes.set_ylim(min(0.0, ordered[0]), 3 * usual)
        say_cut(axes, highest)


def say_cut(axes: Any, farthest: float, *, is_below: bool = False) -> None:
    """Note that values exceed the upper edge, or the lower one, and how far."""
    words, place, side = ("down", 0.015, "bottom") if is_below else ("up", 0.985, "top")
    look: dict[str, Any] = {"xycoords": "axes fraction", "ha": "right", "va": side, "color": ACCENT}
    look["bbox"] = {"fc": "white", "ec": "none", "alpha": 0.85, "pad": 1.0}  # on top of lines
    axes.annotate(f"cut off here: {words} to {farthest:.3g}", (0.99, place), fontsize=7.5, **look)


# Inches: the title, the legend, what is above a map and below it, the edges, the colour bar and its room.
_HEAD, _LEGEND, _ABOVE, _FOOT, _EDGE = 0.4, 0.25, 0.5, 0.55, 0.1
_KEY, _KEY_HEIGHT, _KEY_GAP, _KEY_ROOM = 0.14, 4.0, 0.1, 0.75
_WIDE_ROW = 0.26  # with few rows
WIDE = 15.0
_BELOW: dict[str, Any] = {"loc": "upper left", "frameon": False, "fontsize": 8, "borderaxespad": 0.0}


def draw_maps(training: Trained, title: str, maps: Sequence[HeatMap], missing: str, width: float) -> Any:
    """Return a figure of maps side by side. `missing`: the meaning of gray; `width` in inches."""
    figure = new_figure(width, _HEAD + _height(maps), title, is_laid_out=False)
    _add_maps(figure, _HEAD, training, maps, missing)
    return figure


def _height(maps: Sequence[HeatMap]) -> float:
    return _LEGEND + _ABOVE + max(_map_height(one) for one in maps) + _FOOT


def _map_height(one: HeatMap) -> float:
    return max(len(one.rows), 1) * (ROW if len(one.rows) > MOST_ACROSS else _WIDE_ROW)


def _add_maps(
    figure: Figure, top: float, training: Trained, maps: Sequence[HeatMap], missing: str
) -> list[Any]:
    """Draw maps side by side below their legend; return their axes. Neighbours with equal rows name them once."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    label, findings = labelling(training.layers, training.parameters), by_layer(training.findings)
    labels = [[label(row) for row in one.rows] for one in maps]
    pairs = zip(maps, labels, [[], *labels], strict=False)
    names = [_names(one, own) if own and own != before else () for one, own, before in pairs]
    rooms = [room_for(figure, some) if some else 0.0 for some in names]
    longest = [max((len(codes(findings[x])) for x in own if x in findings), default=0) for own in labels]
    of_codes = [n * _LETTER + (_APART if n else 0.0) for n in longest]  # for `mark_rows`
    fixed = 2 * _EDGE + sum(rooms) + sum(of_codes) + len(maps) * (_KEY_ROOM + _EDGE)
    width = (figure.get_figwidth() - fixed) / len(maps)
    left, panels = _EDGE, []
    handles: list[Any] = [Patch(color=MISSING, label=missing)]
    for one, own, some, room, code_room in zip(maps, labels, names, rooms, of_codes, strict=True):
        left += room
        axes = axes_at(figure, left, top + _LEGEND + _ABOVE, width, _map_height(one))
        panels.append(axes)
        if one.rows:
            handles += _draw_map(axes, one, some, width)
            mark_rows(axes, own, findings, one.steps[0])
            right, high = left + width + code_room + _KEY_GAP, min(_map_height(one), _KEY_HEIGHT)
            bar = axes_at(figure, right, top + _LEGEND + _ABOVE, _KEY, high)
            figure.colorbar(axes.images[0], cax=bar, extend=one.extend).ax.tick_params(labelsize=POINTS)
        else:
            axes.axis("off")
            words = fitted(f"{one.title}: nothing to show", 1.2 * width)
            axes.set_title(words, fontsize=9, loc="left", color=INK)
        left += width + code_room + _KEY_ROOM + _EDGE
    if any(one in findings for own in labels for one in own):
        look: dict[str, Any] = {"ls": "", "marker": ">", "mfc": ACCENT, "mec": "white"}
        handles.append(Line2D([], [], **look, label="first step of a finding, and its code"))
    corner = (rooms[0] + _EDGE) / figure.get_figwidth(), 1 - top / figure.get_figheight()
    figure.legend(handles=handles, bbox_to_anchor=corner, ncols=len(handles), **_BELOW)
    return panels


def _names(one: HeatMap, labels: Sequence[str]) -> list[Name]:
    is_named = bool(one.rows) and isinstance(one.rows[0], WatchedParameter)
    return parameter_names(row.name for row in one.rows) if is_named else layer_names(labels)


def _draw_map(axes: Any, one: HeatMap, names: Sequence[Name], width: float) -> list[Any]:
    """Draw a map; return the crosses in it, for a legend."""
    draw_heat(axes, one.grid, one.steps, **one.look)
    is_tall = len(one.rows) > MOST_ACROSS
    title = f"{one.title}, over the steps" if is_tall else one.title
    axes.set_title(fitted(title, 1.2 * width), fontsize=9, loc="left", color=INK)
    axes.tick_params(axis="x", top=is_tall, labeltop=is_tall)
    write_names(axes, names)
    lines, columns = (one.grid > one.most).nonzero()
    if not len(lines):
        return []
    look: dict[str, Any] = {"color": "#f5c542", "ms": 3.5, "mew": 0.9, "label": f"over {one.most:g} % zero"}
    crosses: list[Any] = axes.plot([one.steps[n] for n in columns], lines, "x", **look)
    return crosses


# Inches: a level of codes, the gap under the losses, the panels of losses and accuracies.
_LEVEL, _UNDER_LOSS, _LOSS, _ACCURACY = 0.15, 0.55, 1.7, 1.1


def draw_training(training: Trained, title: str, below: Sequence[HeatMap] = (), missing: str = "") -> Any:
    """Draw the losses, and maps of mean and standard deviation of every layer, over evenly spaced steps.

    Args:
        below: further maps, in which gray means `missing`.
    """
    curves = curves_of(training)
    maps = [heat_map(training.layers, key) for key in ("mean", "std")]
    n_levels = min(_LEVELS, len({one.since_step for one in training.findings} - {None}))  # of codes, at most
    top = _HEAD + _LEVEL * (n_levels + 1)
    under_loss = _UNDER_LOSS + (_ACCURACY + _UNDER_LOSS if curves.accuracy else 0)
    at = top + _LOSS + under_loss
    figure: Any = new_figure(
        WIDE, at + _height(maps) + (_height(below) if below else 0.0), title, is_laid_out=False
    )
    panels = _add_maps(figure, at, training, maps, "not recorded, not finite, or constant")
    box = panels[0].get_position()
    loss = axes_at(figure, box.x0 * WIDE, top, box.width * WIDE, _LOSS)
    over = [loss]
    if curves.accuracy:
        over.append(axes_at(figure, box.x0 * WIDE, top + _LOSS + _UNDER_LOSS, box.width * WIDE, _ACCURACY))
        for line in curves.accuracy:
            colour = (LINE, ACCENT, AMBER)[line.tone % 3]
            over[1].plot(line.step, floats(line.value), "o-", lw=1.0, ms=3, color=colour, label=line.name)
        over[1].set_ylim(-0.03, 1.03)
        over[1].set_ylabel("accuracy")
        over[1].legend(loc="best", frameon=False, fontsize=8)
    of_curves = {step for line in (*curves.loss, *curves.validation) for step in line.step}
    edges = _edges(sorted(of_curves.union(all_steps(training.layers))))
    for axes in (*over, *panels):
        axes.set_xlim(edges[0], edges[-1])
        whole_steps(axes)
    _draw_loss(loss, curves, mark_steps([*over, *panels], training.findings, box.width * WIDE))
    if below:
        _add_maps(figure, at + _height(maps), training, below, missing)
    return figure


def _draw_loss(axes: Any, curves: TrainingCurves, mark: Any) -> None:
    """Draw the losses, and the learning rates at the right; `mark` is a further line of the legend."""
    lines: list[Any] = []
    for line in curves.loss:
        look: dict[str, Any] = {"color": LINE, "ls": ("-", "-.", ":")[line.tone % 3]}
        lines += plot_series(axes, line.step, line.value, **look, lw=0.9, alpha=0.7, label=line.name)
        label = f"{line.name}, smoothed"
        lines += plot_series(axes, line.step, smoothed(line.value), **look, lw=1.7, label=label)
    lines += _shade_lost(axes, curves.loss)
    for line in curves.validation:
        look = {"ms": 3.5, "lw": 1.0, "color": ACCENT, "label": line.name}
        lines += axes.plot(line.step, floats(line.value), "o-", **look)
    validated = [value for line in curves.validation for value in line.value]
    cut_off(axes, [value for line in curves.loss for value in line.value], validated)
    axes.set_ylabel("loss")
    axes.set_xlabel("step")
    lines += [*_draw_rates(axes, curves.rates), *([mark] if mark else [])]
    axes.legend(handles=lines, bbox_to_anchor=(1.14, 1.0), **_BELOW)


def _shade_lost(axes: Any, losses: Sequence[Line]) -> list[Any]:
    """Shade the steps whose loss is not finite; return one of the areas, for a legend."""
    areas: list[Any] = []
    for line in losses:
        edges, at = _edges(line.step), 0
        for is_finite, group in groupby(value is not None and math.isfinite(value) for value in line.value):
            start, at = at, at + len(list(group))
            if not is_finite:
                areas.append(
                    axes.axvspan(edges[start], edges[at], color=MISSING, lw=0, label="loss not finite")
                )
    if not any(finite(line.value) for line in losses):
        axes.set_yticks([])
    return areas[:1]


def _draw_rates(axes: Any, rates: Sequence[Line]) -> list[Any]:
    """Draw the learning rates on a second scale at the right; return the lines, for a legend."""
    if not rates:
        return []
    right = axes.twinx()
    lines = []
    for one in rates:
        lines += plot_series(right, one.step, one.value, color=AMBER, lw=1.0, ls="--", label=one.name)
    positive = [value for one in rates for value in one.value if value]
    if positive and max(positive) > 100 * min(positive):
        right.set_yscale("log")
    else:
        right.set_ylim(bottom=0)
    right.set_ylabel("learning rate", color=AMBER, fontsize=8)
    right.tick_params(labelsize=7, labelcolor=AMBER)
    right.spines[["top"]].set_visible(False)
    return lines


_POINTS, _STEP = 7.5, 10  # points: the font size, and from one level of codes to the next
_LEVELS = 4
_CODES = 2  # at one step or row; the others are counted
_APART = 0.15  # inches around the codes of a row
_LETTER = 0.62 * _POINTS / 72  # approximate width in inches
_CODE: dict[str, Any] = {
    "textcoords": "offset points", "fontsize": _POINTS, "color": ACCENT, "annotation_clip": False
}  # fmt: skip


def codes(findings: Iterable[TrainingFinding]) -> str:
    """Return the codes of findings, each once: `MS705 MS706 +2`."""
    every = list(dict.fromkeys(finding.code for finding in findings))
    more = len(every) - _CODES
    return " ".join(every[:_CODES]) + (f" +{more}" if more > 0 else "")


def mark_steps(panels: Sequence[Any], findings: Sequence[TrainingFinding], width: float) -> Any:
    """Draw a dotted line through all panels at each step where findings begin, with their codes on top.

    A code is on the lowest level where it overlaps no other, and left out where there is none.

    Args:
        panels: from top to bottom, with the limits of their steps set.
        width: width of the panels in inches.

    Returns:
        One of the lines, for a legend; None without findings.
    """
    low, high = panels[0].get_xlim()
    occupied: list[list[tuple[float, float]]] = [[] for _ in range(_LEVELS)]
    line = None
    for step, starting in by_step(findings).items():
        for axes in panels:
            line = axes.axvline(step, color=ACCENT, lw=0.8, ls=":", label="first step of a finding")
        text = codes(starting)
        length = (len(text) + 1) * _LETTER * (high - low) / width
        is_left = step + length > high  # of its step, at the right edge
        start, end = (step - length, step) if is_left else (step, step + length)
        level = next(
            (i for i, row in enumerate(occupied) if all(end <= a or b <= start for a, b in row)), None
        )
        if level is not None:
            occupied[level].append((start, end))
            at = (-2 if is_left else 2, 3 + _STEP * level)
            where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "va": "bottom"}
            panels[0].annotate(
                text, (step, 1), xytext=at, ha="right" if is_left else "left", **where, **_CODE
            )
    return line


def mark_rows(
    axes: Any, labels: Sequence[str], findings: Mapping[str, Sequence[TrainingFinding]], low: float
) -> None:
    """Mark findings on a map with one row per layer: a triangle at their first step, codes at the right."""
    for place, label in enumerate(labels):
        if not (findings_here := findings.get(label)):
            continue
        if steps := by_step(findings_here):
            look = {"ms": 6, "mfc": ACCENT, "mec": "white", "mew": 0.7, "zorder": 5, "clip_on": False}
            axes.plot([max(min(steps), low)], [place], ">", **look)
        where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center_baseline"}
        axes.annotate(codes(findings_here), (1, place), xytext=(4, 0), **where, **_CODE)
