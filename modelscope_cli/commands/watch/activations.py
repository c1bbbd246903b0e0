"""Mean and standard deviation of every layer over a training, and its loss: lines, or colours of a deep network."""

import math
from collections.abc import Sequence
from typing import Any

from modelscope_cli.commands.watch.heat import HeatPage, figure_title
from modelscope_cli.records.watch import WatchedLayer, WatchRecord, labelling
from modelscope_cli.report import training_curves as curves
from modelscope_cli.report.canvas import ACCENT, INK, axes_at, new_figure
from modelscope_cli.report.finding_marks import mark_steps, n_levels
from modelscope_cli.report.labels import shortened
from modelscope_cli.report.layer_names import MOST_ACROSS, POINTS, layer_names

_WHAT = "means and standard deviations of the layers' outputs"
# Inches of the lines: what is left free, the panels, what lies between, the key of colours.
_LEFT, _TOP, _LEVEL, _BOTTOM, _WIDTH, _GAP = 0.85, 0.5, 0.15, 0.75, 7.6, 0.12
_PANELS, _LOSS = (2.9, 2.9), 1.7
_KEY_NAMES = 28


def draw_activations(record: WatchRecord) -> Any:
    """Draw mean and standard deviation of every layer and the loss over the steps, which are evenly spaced."""
    return (_draw_heats if len(record.layers) > MOST_ACROSS else _draw_lines)(record)


def _draw_lines(record: WatchRecord) -> Any:
    rows = record.layers
    steps = sorted({*curves.all_steps(rows), *(step for one in record.loss for step in one.step)})
    labels = [shortened(label) for label in map(labelling(record.layers, record.parameters), rows)]
    names = max(map(len, labels)) * POINTS * 0.62 / 72
    head = _TOP + _LEVEL * n_levels(record.findings)
    height = head + sum(_PANELS) + _LOSS + 2 * _GAP + _BOTTOM
    title = figure_title(record, _WHAT)
    figure = new_figure(_LEFT + _WIDTH + 1.2 + names, height, title, is_laid_out=False)
    panels, top = [], head
    for high in (*_PANELS, _LOSS):
        panels.append(axes_at(figure, _LEFT, top, _WIDTH, high))
        top += high + _GAP
    colours = _depth_colours()
    for row in rows:
        look: dict[str, Any] = {"color": colours(row.order / max(len(rows) - 1, 1)), "lw": 1.1}
        panels[0].plot(row.series.step, curves.floats(row.series.mean), **look)
        positive = [v if v > 0 else math.nan for v in curves.floats(row.series.std)]
        panels[1].plot(row.series.step, positive, **look)
    _scale_means(panels[0], rows)
    panels[1].set_yscale("log", subs=(2, 5))
    panels[0].set_ylabel("mean")
    panels[1].set_ylabel("standard deviation")
    for axes in panels:
        axes.grid(lw=0.4, alpha=0.5)
        axes.set_xlim(*curves.step_limits(steps))
        curves.whole_steps(axes)
        if axes.get_yscale() != "linear":
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(_few(axes, "{x:g}"))
            axes.tick_params(which="minor", labelsize=7)
    for axes in panels[:2]:
        axes.tick_params(labelbottom=False)
    line = mark_steps(panels, record.findings, _WIDTH)
    _draw_loss(panels[2], record, [line] if line else [])
    _name_depths(figure, axes_at(figure, _LEFT + _WIDTH + 0.75, head, 0.14, sum(_PANELS) + _GAP), labels)
    return figure


def _draw_heats(record: WatchRecord) -> Any:
    from matplotlib.colors import LogNorm, SymLogNorm

    rows, steps = record.layers, curves.all_steps(record.layers)
    labels = list(map(labelling(record.layers, record.parameters), rows))
    levels = _LEVEL * n_levels(record.findings)
    names = layer_names(labels)
    above = levels + _LOSS + 0.6
    page = HeatPage(record, _WHAT, names, labels, steps, n_heats=2, width=15.0, above=above)
    grid = curves.grid_of(rows, steps, lambda series: series.mean)
    low, usual, high = _sizes(rows)
    far = max(_largest(grid), 2 * usual)
    norm: Any = SymLogNorm(usual, vmin=-far, vmax=far) if far > 10 * usual else None
    limits = {"norm": norm} if norm else {"vmin": -far, "vmax": far}
    mean, image = page.heat(grid, "mean", cmap="RdBu_r", **limits)
    page.key(image)
    grid = curves.grid_of(rows, steps, lambda series: series.std)
    grid[grid <= 0] = math.nan
    std, image = page.heat(grid, "standard deviation", cmap="viridis", norm=LogNorm(low, max(high, 2 * low)))
    page.key(image)
    loss = axes_at(page.figure, page.place(0), page.top - 0.6 - _LOSS, page.width, _LOSS, sharex=mean)
    line = mark_steps([loss, mean, std], record.findings, page.width)
    _draw_loss(loss, record, [line] if line else [])
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


def _draw_loss(axes: Any, record: WatchRecord, more: list[Any]) -> None:
    """Draw the losses of training and validation and the learning rate over the same steps, with a legend."""
    lines: list[Any] = []
    for number, series in enumerate(record.loss):
        label = "loss" + (f" of {series.optimizer}" if len(record.loss) > 1 else "")
        style = ("-", "-.", ":")[number % 3]
        lines += axes.plot(series.step, curves.floats(series.value), color=INK, lw=1.1, ls=style, label=label)
    for one in record.facts.criteria:
        if not one.is_training and one.series.step:
            values = curves.floats(one.series.value)
            lines += axes.plot(one.series.step, values, "o-", ms=3, lw=1.0, color=ACCENT, label="validation")
    curves.cut_off(axes, [v for one in record.loss for v in one.value if v is not None and math.isfinite(v)])
    axes.set_ylabel("loss")
    axes.set_xlabel("step")
    lines += [*curves.draw_rates(axes, record.lr), *more]
    axes.legend(
        handles=lines,
        loc="upper left",
        bbox_to_anchor=(0.0, -0.24),
        ncols=len(lines),
        frameon=False,
        fontsize=8,
        borderaxespad=0.0,
    )


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


def _depth_colours() -> Any:
    """Colours from the first layer to the last; the palest would be lost on white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap([colormaps["viridis"](i / 280) for i in range(256)])


def _name_depths(figure: Any, axes: Any, labels: list[str]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    key = figure.colorbar(ScalarMappable(Normalize(0, max(len(labels) - 1, 1)), _depth_colours()), cax=axes)
    stride = -(-len(labels) // _KEY_NAMES)
    key.set_ticks(list(range(0, len(labels), stride)), labels=labels[::stride], fontsize=POINTS)
    key.ax.invert_yaxis()
