"""The figures of `watch`: what the layers gave, step by step."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.records.watch import WatchedLayer, WatchRecord, labelling
from modelscope_cli.report import training_curves as curves
from modelscope_cli.report.canvas import ACCENT, AMBER, INK, new_figure

_MOST_STRIPS = 48
_MOST_ROWS = 160
_ZERO_ROWS = 4  # of a strip, for what lies below the lowest bin
_GAP_ROWS = 14  # above a strip, for its name


def save_figures(record: WatchRecord, folder: Path) -> None:
    """Draw everything there is something to draw of.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    if record.layers:
        curves.save_curves(_draw_activations(record), folder / "activations.png")
        curves.save_curves(_draw_histograms(record), folder / "histograms.png")
        curves.save_curves(_draw_dead(record), folder / "dead_units.png")
    if record.parameters:
        curves.save_curves(_draw_updates(record), folder / "gradients.png")


def _place(figure: Any, left: float, bottom: float, right: float, top: float, **gaps: float) -> None:
    """Keep margins, in inches. A layout engine would draw everything twice to find them."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=left / width, bottom=bottom / height, right=1 - right / width, top=1 - top / height, **gaps
    )


def _label_width(labels: Sequence[str], points: float) -> float:
    """Return about how many inches the longest label takes."""
    return 0.2 + max(map(len, labels), default=0) * points * 0.62 / 72


def _key_axes(figure: Any, right: float, bottom: float, top: float, width: float = 0.14) -> Any:
    """Make room for a colour key that ends so many inches from the right, the bottom and the top."""
    across, up = figure.get_size_inches()
    return figure.add_axes(
        ((across - right - width) / across, bottom / up, width / across, (up - bottom - top) / up)
    )


def _title(record: WatchRecord, what: str) -> str:
    return f"{record.run.model.name}: {what}"


def _mark_steps(axes: Any, steps: list[int]) -> None:
    """Name about eight of the columns; their steps need not be evenly spaced."""
    stride = max(len(steps) // 8, 1)
    places = list(range(0, len(steps), stride))
    axes.set_xticks(places, [str(steps[place]) for place in places], fontsize=8)


def _between(steps: list[int], wanted: Sequence[int]) -> list[float]:
    """Return where steps belong among the columns, which are evenly spaced while the recorded steps are not."""
    import numpy as np

    return [float(at) for at in np.interp(wanted, steps, range(len(steps)))]


def _draw_activations(record: WatchRecord) -> Any:
    """Means and deviations of every layer, and the loss."""
    rows, steps = record.layers, curves.all_steps(record.layers)
    place = {step: i for i, step in enumerate(steps)}
    labels = list(map(labelling(record.layers, record.parameters), rows))
    figure = new_figure(
        10.4, 8.6, _title(record, "means and standard deviations of the layers' outputs"), is_laid_out=False
    )
    panels = figure.subplots(3, 1, sharex=True, height_ratios=[3, 3, 1.6])
    right = _label_width(labels, 7) + 0.4
    _place(figure, 0.85, 0.55, right, 0.45, hspace=0.07)
    colours = _depth_colours()
    for row in rows:
        x = [place[step] for step in row.series.step]
        colour = colours(row.order / max(len(rows) - 1, 1))
        panels[0].plot(x, curves.floats(row.series.mean), color=colour, lw=1.1, alpha=0.9)
        panels[1].plot(
            x, [v if v > 0 else math.nan for v in curves.floats(row.series.std)], color=colour, lw=1.1
        )
    _scale_means(panels[0], rows)
    panels[1].set_yscale("log", subs=(2, 5))
    panels[0].set_ylabel("mean")
    panels[1].set_ylabel("standard deviation")
    for number, series in enumerate(record.loss):
        line = ("-", "--", ":")[number % 3]
        at, values = _between(steps, series.step), curves.floats(series.value)
        panels[2].plot(at, values, color=INK, lw=1.1, ls=line, label=series.optimizer)
    if len(record.loss) > 1:
        panels[2].legend(fontsize=7, loc="upper right")
    panels[2].set_ylabel("loss")
    _draw_rates(panels[2], record, steps)
    panels[2].set_xlabel("step")
    _mark_steps(panels[2], steps)
    for axes in panels:
        axes.grid(lw=0.4, alpha=0.5)
        axes.set_xlim(-0.5, len(steps) - 0.5)
        if axes.get_yscale() != "linear":
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(_few(axes, "{x:g}"))
            axes.tick_params(which="minor", labelsize=7)
        since = {finding.since_step for finding in record.findings if finding.since_step is not None}
        for since_step in _between(steps, sorted(since)):
            axes.axvline(since_step, color=ACCENT, lw=0.8, ls=":")
    lowest = panels[1].get_position().y0 * figure.get_size_inches()[1]
    _name_depths(figure, _key_axes(figure, right - 0.25, lowest, 0.45), labels)
    return figure


def _draw_rates(axes: Any, record: WatchRecord, steps: list[int]) -> None:
    """The learning rate of the first group of every optimizer, where any changes, on a scale of its own."""
    rates = [one for one in record.lr if one.group == 0 and len(set(one.value)) > 1]
    if not rates:
        return
    right = axes.twinx()
    for one in rates:
        right.plot(_between(steps, one.step), curves.floats(one.value), color=AMBER, lw=0.9, ls="--")
    known = [value for one in rates for value in one.value if value]
    if known and max(known) > 100 * min(known):
        right.set_yscale("log")
    right.set_ylabel("learning rate (dashed)", color=AMBER, fontsize=8)
    right.tick_params(labelsize=7, labelcolor=AMBER)


def _scale_means(axes: Any, rows: Sequence[WatchedLayer]) -> None:
    """Where some means are far beyond the usual deviation, show those as powers and the others as they are."""
    sizes = sorted(v for row in rows for v in row.series.std if v and math.isfinite(v))
    means = [abs(v) for row in rows for v in row.series.mean if v is not None and math.isfinite(v)]
    usual = 10.0 ** math.ceil(math.log10(sizes[len(sizes) // 2])) if sizes else 1.0
    if means and max(means) > 10 * usual:
        axes.set_yscale("symlog", linthresh=usual, linscale=1.2)
        axes.axhspan(-usual, usual, color="#f0f0f0", zorder=0)
        axes.annotate(
            "linear", (0.995, usual), xycoords=("axes fraction", "data"), ha="right", va="top", fontsize=7
        )


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
    stride = -(-len(labels) // 28)
    key.set_ticks(list(range(0, len(labels), stride)), labels=labels[::stride], fontsize=7)
    key.ax.invert_yaxis()


def _draw_histograms(record: WatchRecord) -> Any:
    """One strip a layer: time to the right, |x| upwards by powers of two, the logarithm of the count as colour.

    The strips of a column are one image, with blank rows in between: thirty small plots take ten times as long.
    """
    import numpy as np

    rows = _thinned(record.layers, _MOST_STRIPS)
    steps = curves.all_steps(rows)
    n_columns = min(3, len(rows))
    n_lines = -(-len(rows) // n_columns)
    edges = rows[0].series.histogram.edges
    size = _ZERO_ROWS + len(edges) + _GAP_ROWS
    figure = new_figure(
        4.2 * n_columns + 1.2,
        1.3 * n_lines + 1.0,
        _title(record, "how large the values are, over time"),
        is_laid_out=False,
    )
    panels = figure.subplots(1, n_columns, squeeze=False, sharey=True)[0]
    _place(figure, 0.55, 0.5, 0.95, 0.4, wspace=0.04)
    image: Any = None
    label = labelling(record.layers, record.parameters)
    for column, axes in enumerate(panels):
        canvas = np.full((n_lines * size, len(steps)), math.nan)
        for line, row in enumerate(rows[column::n_columns]):
            bottom = (n_lines - 1 - line) * size
            shade = _shades(row, steps)
            canvas[bottom : bottom + len(shade)] = shade
            axes.text(-0.5, bottom + len(shade), f" {label(row)}", fontsize=8, color=INK, va="bottom")
        image = axes.imshow(
            canvas, origin="lower", aspect="auto", cmap="magma", vmin=-5, vmax=0, interpolation="nearest"
        )
        axes.tick_params(labelsize=6, length=2)
        axes.spines[:].set_visible(False)
        _mark_steps(axes, steps)
        axes.set_xlabel("step", fontsize=8)
    _mark_powers(panels[0], edges, [line * size for line in range(n_lines)])
    for axes in panels[1:]:
        axes.tick_params(axis="y", length=0)
    key = figure.colorbar(image, cax=_key_axes(figure, 0.62, 0.5, 0.4))
    key.set_ticks(
        [-5, -4, -3, -2, -1, 0], labels=["none", "0.01 %", "0.1 %", "1 %", "10 %", "all"], fontsize=7
    )
    return figure


def _shades(row: WatchedLayer, steps: list[int]) -> Any:
    """Return the logarithm of the share of each bin, `(bins, steps)`; the bin of zeros is several rows high."""
    import numpy as np

    assert row.series.histogram is not None
    counts = np.asarray(row.series.histogram.counts, dtype=float).T
    shares = counts / np.maximum(counts.sum(0), 1)
    shares = np.concatenate([np.repeat(shares[:1], _ZERO_ROWS - 1, axis=0), shares])
    shade = np.full((len(shares), len(steps)), math.nan)
    place = {step: i for i, step in enumerate(steps)}
    shade[:, [place[step] for step in row.series.step]] = np.log10(np.maximum(shares, 1e-5))
    return shade


def _mark_powers(axes: Any, edges: Sequence[float], bottoms: list[int]) -> None:
    """The first rows are what lies below the first edge, mostly zeros; the last what lies above the last."""
    wanted = [1e-4, 1e-2, 1.0, 100.0]
    places = [
        _ZERO_ROWS + min(range(len(edges)), key=lambda i: abs(math.log(edges[i] / w))) - 0.5 for w in wanted
    ]
    ticks = [(_ZERO_ROWS - 1) / 2, *places]
    axes.set_yticks(
        [bottom + tick for bottom in bottoms for tick in ticks],
        ["0", "1e-4", "0.01", "1", "100"] * len(bottoms),
    )


def _thinned(rows: Sequence[Any], most: int) -> list[Any]:
    stride = -(-len(rows) // most)
    return list(rows)[::stride]


def _heat(axes: Any, grid: Any, labels: list[str], steps: list[int], **look: Any) -> Any:
    image = curves.draw_heat(axes, grid, **look)
    axes.set_facecolor("#d9d9d9")
    axes.set_yticks(range(len(labels)), labels, fontsize=7 if len(labels) < 50 else 5)
    _mark_steps(axes, steps)
    return image


def _draw_dead(record: WatchRecord) -> Any:
    """The share of zeros: of rectifiers where there are any, else of every layer."""
    rectifiers = curves.rectifiers(record.layers)
    rows = _thinned(rectifiers or record.layers, _MOST_ROWS)
    steps = curves.all_steps(rows)
    grid = curves.grid_of(rows, steps, lambda series: series.zero_fraction)
    what = "zeros in the outputs of the ReLUs" if rectifiers else "zeros in each layer's output"
    figure = new_figure(10.0, 1.1 + 0.28 * len(rows), _title(record, what), is_laid_out=False)
    axes = figure.subplots()
    labels = list(map(labelling(record.layers, record.parameters), rows))
    _place(figure, _label_width(labels, 7), 0.5, 1.0, 0.45)
    image = _heat(axes, 100 * grid, labels, steps, cmap="RdYlBu_r", vmin=0, vmax=100)
    dead = [
        (column, line)
        for line, row in enumerate(rows)
        for column, step in enumerate(steps)
        if grid[line, column] > 0.9
    ]
    axes.plot([x for x, _ in dead], [y for _, y in dead], "x", color="white", ms=3, mew=0.7)
    figure.colorbar(image, cax=_key_axes(figure, 0.7, 0.5, 0.45), label="percent zero (x: over 90)")
    return figure


def _draw_updates(record: WatchRecord) -> Any:
    """Gradients and relative updates of the weights; biases live on another scale."""
    import numpy as np

    weights = curves.matrices(record.parameters) or list(record.parameters)
    rows = _thinned(weights, _MOST_ROWS)
    steps = curves.all_steps(rows)
    labels = [one.name for one in rows]
    figure = new_figure(
        13.0,
        1.4 + 0.24 * len(rows),
        _title(record, "gradients and updates of the weights"),
        is_laid_out=False,
    )
    left, right = figure.subplots(1, 2, sharey=True)
    _place(figure, _label_width(labels, 7), 0.5, 0.2, 0.65, wspace=0.03)
    with np.errstate(all="ignore"):
        norms = np.log10(curves.grid_of(rows, steps, lambda series: series.grad_norm))
        ratios = np.log10(curves.grid_of(rows, steps, lambda series: series.update_ratio))
    norms[~np.isfinite(norms)] = math.nan
    ratios[~np.isfinite(ratios)] = math.nan
    usual = norms[np.isfinite(norms)]
    low, high = (np.floor(usual.min()), np.ceil(usual.max())) if usual.size else (-3, 1)
    image = _heat(left, norms, labels, steps, cmap="viridis", vmin=low, vmax=max(high, low + 1))
    _powers(
        figure.colorbar(image, ax=left, aspect=40, pad=0.01), range(int(low), int(max(high, low + 1)) + 1)
    )
    left.set_title("norm of the gradient", fontsize=9, loc="left", color=INK)
    image = _heat(right, ratios, labels, steps, cmap="RdBu_r", vmin=-6, vmax=0)
    _powers(figure.colorbar(image, ax=right, aspect=40, pad=0.01), range(-6, 1))
    right.set_title(
        "update / weight: about 0.001 is usual, 0.1 is far too much", fontsize=9, loc="left", color=INK
    )
    return figure


def _powers(key: Any, exponents: range) -> None:
    stride = -(-len(exponents) // 8)
    key.set_ticks(list(exponents)[::stride], labels=[f"1e{e}" for e in list(exponents)[::stride]], fontsize=7)


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {
    "activations": _draw_activations,
    "histograms": _draw_histograms,
    "dead_units": _draw_dead,
    "gradients": _draw_updates,
}
