"""The picture of pruning: how the answers drift as more is cut, and where the zeros are."""

import math
from typing import Any

from modelscope_cli.commands.prune.table import prune_columns, weight_label
from modelscope_cli.records.prune import PruneRecord
from modelscope_cli.report.canvas import ACCENT, INK, LINE, new_figure
from modelscope_cli.report.headline import given
from modelscope_cli.report.labels import shortened
from modelscope_cli.report.numbers import short

_PALE = "#cfd8e4"
_MOST_LABELS = 60


def draw_pruning(record: PruneRecord) -> Any:
    """Draw agreement, divergence and logit change over the amount; beside them every layer's weights and zeros.

    Red is the amount that was asked for. With nothing cut, at 0, nothing drifts.
    """
    height = min(max(6.4, 0.17 * len(record.layers) + 1.6), 14.0)
    figure = new_figure(11.0, height, _title(record))
    curves = _curves_of(record)
    grid = figure.add_gridspec(
        len(curves), 2, width_ratios=[1.25, 1], height_ratios=[1.3, 1, 1][: len(curves)]
    )
    panels = [figure.add_subplot(grid[row, 0]) for row in range(len(curves))]
    for axes, (values, at_zero, label) in zip(panels, curves, strict=True):
        _curve(axes, record, values, at_zero, label)
        if at_zero:  # a share
            axes.set_ylim(-4, 104)
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    unit = "channels" if record.structured else "weights"
    panels[-1].set_xlabel(f"{unit} cut, %")
    _draw_layers(figure.add_subplot(grid[:, 1]), record)
    return figure


def _curves_of(record: PruneRecord) -> list[tuple[list[float], float, str]]:
    """Return what the drift of this output has: values, the value with nothing cut, and a label."""
    rows = record.sweep
    titles = {column.key: column.title for column in prune_columns("drift", record.output)}
    found = [
        (
            [100 * share for row in rows if (share := row.agreement) is not None],
            100.0,
            f"{titles['agreement']}, %",
        ),
        (
            [100 * cosine for row in rows if (cosine := row.cosine_similarity) is not None],
            100.0,
            "cosine similarity, %",
        ),
        ([nats for row in rows if (nats := row.kl_divergence) is not None], 0.0, "KL divergence, nats"),
        ([row.max_logit_change for row in rows], 0.0, titles["max_logit_change"]),
    ]
    return [curve for curve in found if curve[0]]


def _curve(axes: Any, record: PruneRecord, values: list[float], at_zero: float, label: str) -> None:
    points = {0.0: at_zero} | dict(zip((100 * row.amount for row in record.sweep), values, strict=True))
    finite = {x: y for x, y in points.items() if math.isfinite(y)}
    axes.plot(list(finite), list(finite.values()), "o-", ms=4.5, lw=1.6, color=LINE, clip_on=False)
    asked = 100 * record.amount
    axes.axvline(asked, color=ACCENT, lw=0.8, ls=":", zorder=0)
    if asked in finite:
        axes.plot([asked], [finite[asked]], "o", ms=7, color=ACCENT, clip_on=False, zorder=3)
    axes.set_xlim(-2, 102)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
    axes.grid(lw=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_layers(axes: Any, record: PruneRecord) -> None:
    rows = record.layers
    places = range(len(rows))
    longest = max(row.numel for row in rows)
    axes.barh(places, [row.numel for row in rows], height=0.78, color=_PALE)
    axes.barh(
        places, [row.zeros for row in rows], height=0.78, color=LINE, label=f"zero at {record.amount:g}"
    )
    step = -(-len(rows) // _MOST_LABELS)
    for place in places[::step]:
        row = rows[place]
        share = f"{100 * row.sparsity:.1f} %"
        axes.text(row.numel + 0.01 * longest, place, share, va="center", fontsize=7, color=INK)
    axes.set_yticks(places[::step], [shortened(weight_label(row)) for row in rows][::step], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * longest)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.spines[["top", "right"]].set_visible(False)
    total = f"{100 * record.totals.sparsity:.1f} % in all"
    axes.set_xlabel(f"weights of each layer; dark: zero at {record.amount:g} ({total})")


def _title(record: PruneRecord) -> str:
    what = given(record.run, record.images)
    return f"{record.run.model.heading}, on {what}: cutting {record.what_is_cut}"


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {"pruning": draw_pruning}
