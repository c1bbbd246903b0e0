"""Mean and standard deviation of every layer over a training, and its loss: lines, or colours of a deep network."""

import math
from collections.abc import Sequence
from typing import Any

from modelscope_cli.commands.watch.heat import HeatPage, figure_title
from modelscope_cli.records.watch import WatchedLayer, WatchRecord, labelling
from modelscope_cli.report import heat_map
from modelscope_cli.report import training_curves as curves
from modelscope_cli.report.canvas import ACCENT, INK, axes_at, new_figure
from modelscope_cli.report.depth_key import depth_colour, draw_depth_key, room_for_key
from modelscope_cli.report.finding_marks import mark_steps, n_levels
from modelscope_cli.report.layer_names import MOST_ACROSS, layer_names

_WHAT = "means and standard deviations of the layers' outputs"
# Inches of the lines: what is left free, the panels, what lies between, the key of colours.
_LEFT, _TOP, _LEVEL, _BOTTOM, _WIDTH, _GAP = 0.85, 0.5, 0.15, 0.75, 7.6, 0.12
_PANELS, _LOSS = (2.9, 2.9), 1.7
_UNDER_LOSS = 0.4


def draw_activations(record: WatchRecord) -> Any:
    """Draw mean and standard deviation of every layer and the loss over the steps, which are evenly spaced."""
    return (_draw_heats if len(record.layers) > MOST_ACROSS else _draw_lines)(record)


def _draw_lines(record: WatchRecord) -> Any:
    rows = record.layers
    labels = list(map(labelling(record.layers, record.parameters), rows))
    head = _TOP + _LEVEL * n_levels(record.findings)
    height = head + sum(_PANELS) + _LOSS + 2 * _GAP + _BOTTOM
    title = figure_title(record, _WHAT)
    figure = new_figure(_LEFT + _WIDTH + 0.8 + room_for_key(labels), height, title, is_laid_out=False)
    panels, top = [], head
    for high in (*_PANELS, _LOSS):
        panels.append(axes_at(figure, _LEFT, top, _WIDTH, high))
        top += high + _GAP
    for number, row in enumerate(rows):
        look: dict[str, Any] = {"color": depth_colour(number, len(rows)), "lw": 1.1}
        curves.plot_series(panels[0], row.series.step, row.series.mean, **look)
        positive = [v if v > 0 else math.nan for v in curves.floats(row.series.std)]
        curves.plot_series(panels[1], row.series.step, positive, **look)
    _scale_means(panels[0], rows)
    panels[1].set_yscale("log", subs=(2, 5))
    panels[0].set_ylabel("mean")
    panels[1].set_ylabel("standard deviation")
    for axes in panels:
        axes.grid(lw=0.4, alpha=0.5)
        axes.set_xlim(*_limits(record))
        curves.whole_steps(axes)
        if axes.get_yscale() != "linear":
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(_few(axes, "{x:g}"))
            axes.tick_params(which="minor", labelsize=7)
    for axes in panels[:2]:
        axes.tick_params(labelbottom=False)
    line = mark_steps(panels, record.findings, _WIDTH)
    _draw_loss(panels[2], record, [line] if line else [])
    draw_depth_key(figure, (_LEFT + _WIDTH + 0.75, head, sum(_PANELS) + _GAP), labels)
    return figure


def _limits(record: WatchRecord) -> tuple[float, float]:
    """Return the first and the last step there is anything of."""
    steps = {*curves.all_steps(record.layers), *(step for one in record.loss for step in one.step)}
    validated = (step for one in record.facts.criteria if not one.is_training for step in one.series.step)
    return curves.step_limits(sorted(steps | set(validated)))


def _draw_heats(record: WatchRecord) -> Any:
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    rows, steps = record.layers, curves.all_steps(record.layers)
    labels = list(map(labelling(record.layers, record.parameters), rows))
    above = _LEVEL * n_levels(record.findings) + _LEVEL + _LOSS + _UNDER_LOSS
    page = HeatPage(record, _WHAT, layer_names(labels), labels, steps, n_maps=2, width=15.0, above=above)
    low, usual, high = _sizes(rows)
    grid = curves.grid_of(rows, steps, lambda series: series.mean)
    far = max(_largest(grid), 2 * usual)
    norm: Any = SymLogNorm(usual, vmin=-far, vmax=far) if far > 10 * usual else Normalize(-far, far)
    mean, image = page.draw(grid, "mean", cmap="RdBu_r", norm=norm)
    page.key(image)
    grid = curves.grid_of(rows, steps, lambda series: series.std)
    grid[grid <= 0] = math.nan
    std, image = page.draw(grid, "standard deviation", cmap="viridis", norm=LogNorm(low, max(high, 2 * low)))
    page.key(image)
    top = page.top - heat_map.ABOVE - _UNDER_LOSS - _LOSS
    loss = axes_at(page.figure, page.left(0), top, page.width, _LOSS)
    for axes in (loss, mean, std):
        axes.set_xlim(*_limits(record))
    curves.whole_steps(loss)
    line = mark_steps([loss, mean, std], record.findings, page.width)
    _draw_loss(loss, record, [line] if line else [], is_beside=True)
    return page.finish("not recorded, not finite, or no deviation")


def _sizes(rows: Sequence[WatchedLayer]) -> tuple[float, float, float]:
    """Return the least, a usual and the largest standard deviation."""
    sizes = sorted(v for row in rows for v in row.series.std if v and math.isfinite(v))
    if not sizes:
        return 0.1, 1.0, 1.0
    return sizes[0], 10.0 ** math.ceil(math.log10(sizes[len(sizes) // 2])), sizes[-1]


def _largest(grid: Any) -> float:
    import numpy as np

    finite = np.abs(grid[np.isfinite(grid)])
    return float(finite.max()) if finite.size else 1.0


def _draw_loss(axes: Any, record: WatchRecord, more: list[Any], *, is_beside: bool = False) -> None:
    """Draw the losses of training and validation and the learning rate over the same steps.

    Args:
        more: lines for the legend, which stands below, or where there is room beside.
    """
    lines: list[Any] = []
    losses = [value for one in record.loss for value in one.value]
    validated: list[float | None] = []
    for number, series in enumerate(record.loss):
        label = "loss" + (f" of {series.optimizer}" if len(record.loss) > 1 else "")
        look: dict[str, Any] = {"color": INK, "lw": 1.1, "ls": ("-", "-.", ":")[number % 3], "label": label}
        lines += curves.plot_series(axes, series.step, series.value, **look)
    for one in record.facts.criteria:
        if not one.is_training and one.series.step:
            look = {"ms": 3, "lw": 1.0, "color": ACCENT, "label": "validation"}
            lines += axes.plot(one.series.step, curves.floats(one.series.value), "o-", **look)
            validated += one.series.value
    curves.cut_off(axes, losses, validated)
    axes.set_ylabel("loss")
    axes.set_xlabel("step")
    lines += [*curves.draw_rates(axes, record.lr), *more]
    corner, n_columns = ((1.14, 1.0), 1) if is_beside else ((0.0, -0.24), len(lines))
    look = {"ncols": n_columns, "frameon": False, "fontsize": 8, "borderaxespad": 0.0}
    axes.legend(handles=lines, loc="upper left", bbox_to_anchor=corner, **look)


def _scale_means(axes: Any, rows: Sequence[WatchedLayer]) -> None:
    """Where some means are far beyond the usual deviation, show those as powers and the others as they are."""
    means = [abs(v) for row in rows for v in row.series.mean if v is not None and math.isfinite(v)]
    _, usual, _ = _sizes(rows)
    if means and max(means) > 10 * usual:
        axes.set_yscale("symlog", linthresh=usual, linscale=1.2)
        axes.axhspan(-usual, usual, color="#f0f0f0", zorder=0)
        where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "top"}
        axes.annotate("linear in the gray band", (0.995, usual), fontsize=7, **where)


def _few(axes: Any, format: str) -> str:
    """Return the format of the numbers between powers of ten: none where there are powers enough."""
    low, high = axes.get_ylim()
    return format if low > 0 and high < 1000 * low else ""
