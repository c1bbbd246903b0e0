"""The figure of `prune`."""

import math
from typing import Any

from modelscope_cli.records.prune import PruneRecord
from modelscope_cli.report.canvas import ACCENT, LINE, fitted, new_figure, tidy
from modelscope_cli.report.numbers import given
from modelscope_cli.report.prune.table import prune_columns

_WIDTH, _HEIGHT = 7.0, 6.4  # inches


def draw_pruning(record: PruneRecord) -> Any:
    """Draw agreement, divergence and logit change over the amount; the requested amount is red."""
    what = given(record.run, record.images)
    title = f"{record.run.model.heading}, on {what}: pruning {record.what_is_cut}"
    figure = new_figure(_WIDTH, _HEIGHT, fitted(title, _WIDTH))
    panels = figure.subplots(3, 1, sharex=True)
    titles = {column.key: column.title for column in prune_columns("drift", record.output)}
    rows = record.sweep
    _curve(panels[0], record, [100 * row.agreement for row in rows], 100.0, f"{titles['agreement']}, %")
    _curve(panels[1], record, [row.kl_divergence for row in rows], 0.0, "KL divergence, nats")
    _curve(panels[2], record, [row.max_logit_change for row in rows], 0.0, titles["max_logit_change"])
    panels[0].set_ylim(-4, 104)
    panels[-1].set_xlabel(f"{'channels' if record.structured else 'weights'} pruned (%)")
    return figure


def _curve(axes: Any, record: PruneRecord, values: list[float], at_zero: float, label: str) -> None:
    points = {0.0: at_zero} | dict(zip((100 * row.amount for row in record.sweep), values, strict=True))
    finite = {x: y for x, y in points.items() if math.isfinite(y)}
    axes.plot(list(finite), list(finite.values()), "o-", ms=4.5, lw=1.6, color=LINE, clip_on=False)
    requested = 100 * record.amount
    axes.axvline(requested, color=ACCENT, lw=0.8, ls=":", zorder=0)
    if requested in finite:
        axes.plot([requested], [finite[requested]], "o", ms=7, color=ACCENT, clip_on=False, zorder=3)
    most = max(*points, 1.0)
    axes.set_xlim(-0.02 * most, 1.02 * most)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
    tidy(axes)
