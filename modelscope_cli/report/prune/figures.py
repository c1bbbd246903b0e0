"""The figure of `prune` and its output folder."""

import math
from collections.abc import Sequence
from typing import Any

from modelscope_cli.records.prune import PruneRecord
from modelscope_cli.report.canvas import ACCENT, INK, LINE, axes_at, fitted, new_figure, tidy
from modelscope_cli.report.facts import given
from modelscope_cli.report.layer_axis import (
    MOST_ACROSS,
    POINTS,
    ROW,
    Name,
    band_blocks,
    layer_names,
    room_for,
    write_names,
)
from modelscope_cli.report.numbers import number, short
from modelscope_cli.report.prune.table import prune_columns, weight_label

_PALE = "#cfd8e4"
# Inches: the figure, its curves, what is above and below.
_WIDTH, _CURVES, _LEAST, _TOP, _LINE, _FOOT = 12.0, 5.2, 5.2, 0.55, 0.19, 0.65
_ALIKE = 0.005  # difference of the shares up to which one number stands for all layers
_MOST_ROW = 0.4  # of a few layers, next to the curves
_Drift = tuple[list[float], float, str]  # values, the value without pruning, label


def draw_pruning(record: PruneRecord) -> Any:
    """Draw agreement, divergence and logit change over the amount, next to every layer's weights and zeros.

    The requested amount is red. For a single amount there are no curves: its values are in the title.
    """
    names = layer_names(map(weight_label, record.layers))
    is_swept = len(record.sweep) > 1
    curves = _curves_of(record)
    results = "" if is_swept else "".join(f"\n{label}: {number(values[0])}" for values, _, label in curves)
    title = fitted(_title(record) + results, _WIDTH)
    top = _TOP + _LINE * title.count("\n")
    rows = ROW * len(names)
    if is_swept and rows < _LEAST:
        rows = min(_LEAST, _MOST_ROW * len(names))
    figure = new_figure(
        _WIDTH, top + max(rows, _LEAST if is_swept else 0.0) + _FOOT, title, is_laid_out=False
    )
    left = room_for(figure, names) + 0.1
    if is_swept:
        _draw_curves(figure, record, curves, top)
        left += _CURVES
    axes = axes_at(figure, left, top, _WIDTH - left - 0.2, rows)
    _draw_layers(axes, record, names)
    return figure


def _draw_curves(figure: Any, record: PruneRecord, curves: list[_Drift], top: float) -> None:
    """Draw one panel per curve, one above the other."""
    height = (_LEAST - 0.15 * (len(curves) - 1)) / len(curves)
    for place, (values, at_zero, label) in enumerate(curves):
        axes = axes_at(figure, 0.8, top + place * (height + 0.15), _CURVES - 1.0, height)
        _curve(axes, record, values, at_zero, label)
        if at_zero:  # a fraction
            axes.set_ylim(-4, 104)
        axes.tick_params(labelbottom=place == len(curves) - 1)
    unit = "channels" if record.structured else "weights"
    axes.set_xlabel(f"{unit} cut, %")


def _curves_of(record: PruneRecord) -> list[_Drift]:
    rows = record.sweep
    titles = {column.key: column.title for column in prune_columns("drift", record.output)}
    return [
        ([100 * row.agreement for row in rows], 100.0, f"{titles['agreement']}, %"),
        ([row.kl_divergence for row in rows], 0.0, "KL divergence, nats"),
        ([row.max_logit_change for row in rows], 0.0, titles["max_logit_change"]),
    ]


def _curve(axes: Any, record: PruneRecord, values: list[float], at_zero: float, label: str) -> None:
    points = {0.0: at_zero} | dict(zip((100 * row.amount for row in record.sweep), values, strict=True))
    finite = {x: y for x, y in points.items() if math.isfinite(y)}
    axes.plot(list(finite), list(finite.values()), "o-", ms=4.5, lw=1.6, color=LINE, clip_on=False)
    requested = 100 * record.amount
    axes.axvline(requested, color=ACCENT, lw=0.8, ls=":", zorder=0)
    if requested in finite:
        axes.plot([requested], [finite[requested]], "o", ms=7, color=ACCENT, clip_on=False, zorder=3)
    most = max(points)
    axes.set_xlim(-0.02 * most, 1.02 * most)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
    tidy(axes)


def _draw_layers(axes: Any, record: PruneRecord, names: Sequence[Name]) -> None:
    rows = record.layers
    places = range(len(rows))
    longest = max(row.numel for row in rows)
    axes.barh(places, [row.numel for row in rows], height=0.78, color=_PALE)
    axes.barh(places, [row.zeros for row in rows], height=0.78, color=LINE)
    shares = [f"{100 * row.sparsity:.1f} %" for row in rows]
    sparsities = [row.sparsity for row in rows]
    is_alike = max(sparsities) - min(sparsities) < _ALIKE
    for place, row in enumerate(() if is_alike else rows):
        where = (row.numel + 0.01 * longest, place)
        axes.text(*where, shares[place], va="center_baseline", fontsize=POINTS, color=INK)
    write_names(axes, names)
    if len(names) > MOST_ACROSS:
        band_blocks(axes, names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, (1.02 if is_alike else 1.12) * longest)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.spines[["top", "right"]].set_visible(False)
    total = f"{100 * record.totals.sparsity:.1f} % {'of each' if is_alike else 'in all'}"
    axes.set_xlabel(f"weights of each layer; dark: zero at {record.amount:g} ({total})")


def _title(record: PruneRecord) -> str:
    what = given(record.run, record.images)
    return f"{record.run.model.heading}, on {what}: pruning {record.what_is_cut}"
