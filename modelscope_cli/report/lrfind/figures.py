"""The figure of `lrfind` and its output folder."""

import math
from collections.abc import Sequence
from typing import Any

from modelscope_cli.records.train import RECOMMENDED, LrfindRecord
from modelscope_cli.report.canvas import ABOVE, ACCENT, INK, LINE, new_figure, tidy
from modelscope_cli.report.lrfind.table import WAYS, answer, loss_at, rate
from modelscope_cli.report.training_figures import say_cut

_MARKERS = {"steepest": "^", "valley": "o", "minimum": "s"}


def draw_range_test(record: LrfindRecord) -> Any:
    """Draw the loss (faint) and the smoothed loss over the learning rate, with the suggestions.

    The recommended one is filled; the others are hollow.
    """
    figure = new_figure(8.0, 4.6, f"{record.run.model.short_name}, {record.optimizer}: {answer(record)}")
    axes = figure.subplots()
    points = [
        point for point in zip(record.lr, record.loss, record.smoothed, strict=True) if None not in point
    ]
    rates, losses, smoothed = zip(*points, strict=True) if points else ((), (), ())
    axes.plot(rates, losses, color=LINE, lw=0.7, alpha=0.4, label="loss")
    axes.plot(rates, smoothed, color=LINE, lw=1.8, label="smoothed")
    _mark_suggestions(axes, record)
    axes.set_xscale("log")
    _cut_rise(axes, smoothed, losses)
    tidy(axes)
    axes.set_xlabel("learning rate (logarithmic)")
    axes.set_ylabel("loss")
    axes.legend(**ABOVE, ncols=3)
    return figure


def _mark_suggestions(axes: Any, record: LrfindRecord) -> None:
    for name in WAYS:
        lr = getattr(record.suggestion, name)
        if lr is None:
            continue
        is_best = name == RECOMMENDED
        colour = ACCENT if is_best else INK
        words = f"{name.replace('minimum', 'minimum / 10')}: {rate(lr)}" + (
            ", recommended" if is_best else ""
        )
        look = {"ms": 9 if is_best else 6.5, "mec": colour, "mfc": colour if is_best else "white"}
        axes.axvline(lr, color=colour, lw=1.2 if is_best else 0.7, ls="-" if is_best else ":", zorder=1)
        height = loss_at(record, lr)
        axes.plot([lr], [math.nan if height is None else height], _MARKERS[name], **look, label=words)


def _cut_rise(axes: Any, smoothed: Sequence[float], raw: Sequence[float]) -> None:
    """Limit the axis to as much above the start as below it, and note what is cut off."""
    if not smoothed:
        return
    low, first = min(smoothed), smoothed[0]
    room = max(first - low, 0.05 * abs(first))
    bottom, top = min(low - 0.3 * room, max(min(raw), low - room)), first + room
    axes.set_ylim(bottom, top)
    if max(*smoothed, *raw) > top:
        say_cut(axes, max(*smoothed, *raw))
    if min(raw) < bottom:
        say_cut(axes, min(raw), is_below=True)
