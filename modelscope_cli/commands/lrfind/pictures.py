"""The picture of a range test: the loss over the learning rate, and the suggestions on it."""

from typing import Any

from modelscope_cli.commands.lrfind.table import WAYS, loss_at
from modelscope_cli.records.lrfind import LrfindRecord
from modelscope_cli.report.canvas import ACCENT, AMBER, GREEN, INK, LINE, new_figure

_COLOURS = {"steepest": ACCENT, "valley": GREEN, "minimum": AMBER}


def draw_range_test(record: LrfindRecord) -> Any:
    """Draw the loss, faint, and the smoothed loss over the learning rate, with a dot for each suggestion."""
    figure = new_figure(8.0, 4.6)
    axes = figure.subplots()
    points = [(lr, a, b) for lr, a, b in zip(record.lr, record.loss, record.smoothed, strict=True) if a and b]
    rates = [lr for lr, _, _ in points]
    smoothed = [value for _, _, value in points]
    axes.plot(rates, [value for _, value, _ in points], color=LINE, lw=0.7, alpha=0.4, label="loss")
    axes.plot(rates, smoothed, color=LINE, lw=1.8, label="smoothed")
    for name in WAYS:
        lr = getattr(record.suggestion, name)
        if lr is not None:
            label = f"{name.replace('minimum', 'minimum / 10')}: {lr:.2g}"
            axes.axvline(lr, color=_COLOURS[name], lw=0.8, ls=":")
            height = loss_at(record, lr) or float("nan")
            axes.plot([lr], [height], "o", ms=7, color=_COLOURS[name], label=label)
    if record.sweep == "exponential":
        axes.set_xscale("log")
    if smoothed:
        low, first = min(smoothed), smoothed[0]
        room = max(first - low, 0.05 * abs(first))  # as much above the start as below: the rise needs no more
        axes.set_ylim(low - 0.3 * room, first + room)
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss")
    axes.grid(lw=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    name = record.run.model.short_name
    axes.set_title(f"{name}, {record.optimizer}: {record.stopped}", loc="left", fontsize=10, color=INK)
    return figure


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {"range test": draw_range_test}
