"""The figure of `summary`: the memory of a training step."""

from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.records.summary import SummaryRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import ABOVE, ACCENT, GREEN, LINE, new_figure, tidy

_MOST_NAMES = 12


def draw_memory(record: SummaryRecord) -> Any:
    """Draw the highest memory of a training step while each layer runs, forward, backward and optimizer."""
    training = record.training
    if training is None:
        raise UsageError("the memory of a step is drawn only with --train", "--train")
    figure = new_figure(11.0, 4.6, f"{record.run.model.heading}: memory of a training step")
    axes = figure.subplots()
    for phase, colour in (("forward", LINE), ("backward", ACCENT), ("optimizer", GREEN)):
        levels = [
            (n, level.bytes / 2**20) for n, level in enumerate(training.timeline) if level.phase == phase
        ]
        axes.plot(*zip(*levels, strict=True), "-", marker=".", ms=3, lw=1.4, color=colour, label=phase)
    stride = -(-len(training.timeline) // _MOST_NAMES)
    named = range(0, len(training.timeline), stride)
    names = [numbers.shortened(training.timeline[n].layer or training.timeline[n].phase, 20) for n in named]
    axes.set_xticks(named, names, rotation=30, ha="right", fontsize=8)
    peak = f"peak {numbers.memory(training.peak_bytes)}"
    axes.axhline(training.peak_bytes / 2**20, ls=":", lw=0.9, color=LINE, label=peak)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("MiB")
    tidy(axes)
    axes.legend(**ABOVE, ncols=4)
    return figure
