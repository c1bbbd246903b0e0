"""The picture of pruning: how the answers drift as more is cut, and where the zeros are."""

import math
from pathlib import Path
from typing import Any

from modelscope_cli.records import PruneRecord
from modelscope_cli.report.folder import write_with
from modelscope_cli.report.prune_sheet import weight_label, what_is_cut

INK, ACCENT, BARS, PALE = "#1f2430", "#d1495b", "#3f5f8f", "#b8c4d6"
_MOST_LABELS = 60


def save_prune_plot(record: PruneRecord, path: Path) -> None:
    """Draw agreement, divergence and logit change over the amount, and beside them the zeros of every layer.

    The dotted line is the amount that was asked for; nothing cut is the point at 0.

    Raises:
        CannotRunError: the file cannot be written (exit 4).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = min(max(6.4, 0.17 * len(record.layers) + 1.6), 14.0)
    figure = Figure(figsize=(11.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(3, 2, width_ratios=[1.25, 1], height_ratios=[1.3, 1, 1])
    curves = [figure.add_subplot(grid[row, 0]) for row in range(3)]
    rows = record.sweep
    amounts = [0.0, *(100 * row.amount for row in rows)]
    _curve(curves[0], amounts, [100.0, *(100 * row.agreement for row in rows)], "same answer, %")
    curves[0].set_ylim(-4, 104)
    _curve(curves[1], amounts, [0.0, *(row.kl_divergence for row in rows)], "KL divergence, nats")
    _curve(curves[2], amounts, [0.0, *(row.max_logit_change for row in rows)], "max |logit change|")
    for axes in curves:
        axes.axvline(100 * record.amount, color=INK, lw=0.8, ls=":", zorder=0)
        axes.set_xlim(-2, 102)
        axes.tick_params(labelbottom=axes is curves[-1])
    unit = "channels" if record.structured else "weights"
    curves[-1].set_xlabel(f"{unit} cut, %")
    _draw_layers(figure.add_subplot(grid[:, 1]), record)
    figure.suptitle(_title(record), x=0.01, ha="left", color=INK, fontsize=11)
    write_with(path, lambda beside: figure.savefig(beside, format="png", dpi=130))


def _curve(axes: Any, amounts: list[float], values: list[float], label: str) -> None:
    shown = [(x, y) for x, y in sorted(set(zip(amounts, values, strict=True))) if math.isfinite(y)]
    axes.plot([x for x, _ in shown], [y for _, y in shown], "o-", ms=4.5, lw=1.5, color=BARS, clip_on=False)
    axes.set_ylabel(label)
    axes.grid(lw=0.4, alpha=0.5)
    if label[0] != "s":
        axes.set_ylim(bottom=0)


def _draw_layers(axes: Any, record: PruneRecord) -> None:
    rows = record.layers
    places = range(len(rows))
    axes.barh(places, [100.0] * len(rows), height=0.78, color=PALE, alpha=0.45)
    axes.barh(places, [100 * row.sparsity for row in rows], height=0.78, color=BARS)
    mean = 100 * record.totals.sparsity
    axes.axvline(mean, color=ACCENT, lw=1.0)
    step = -(-len(rows) // _MOST_LABELS)
    axes.set_yticks(list(places)[::step], [weight_label(row) for row in rows][::step], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"zeros in each layer at {record.amount:g}, %  (line: all together, {mean:.1f})")
    axes.spines[["top", "right"]].set_visible(False)


def _title(record: PruneRecord) -> str:
    model = record.run.model
    name = Path(model.name).name if model.source == "import" else model.name
    what = f"{record.images} image" + ("s" if record.images != 1 else "")
    given = record.run.input
    if given and given.source != "image":
        what = given.source
    return f"{name}, {model.weights.resolved} weights, on {what}: cutting {what_is_cut(record)}"
