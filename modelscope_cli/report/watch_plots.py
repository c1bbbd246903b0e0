"""The figures of `watch`: what the layers gave, step by step."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.records import WatchedLayer, WatchedParameter, WatchRecord
from modelscope_cli.report.folder import write_with
from modelscope_cli.report.watch_sheet import layer_label

INK, ALARM = "#1f2430", "#d1495b"
_MOST_STRIPS = 48
_MOST_ROWS = 160
_ZERO_ROWS = 4  # of a strip, for what lies below the lowest bin
_RECTIFIERS = ("ReLU",)


def save_figures(record: WatchRecord, folder: Path) -> None:
    """Draw everything there is something to draw of.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    if record.layers:
        _save(_draw_activations(record), folder / "activations.png")
        _save(_draw_histograms(record), folder / "histograms.png")
        _save(_draw_dead(record), folder / "dead_units.png")
    if record.parameters:
        _save(_draw_updates(record), folder / "gradients.png")


def _figure(width: float, height: float, title: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=11)
    return figure


def _save(figure: Any, path: Path) -> None:
    write_with(path, lambda beside: figure.savefig(beside, format="png", dpi=110))


def _title(record: WatchRecord, what: str) -> str:
    return f"{record.run.model.name}: {what}"


def _all_steps(rows: Sequence[WatchedLayer] | Sequence[WatchedParameter]) -> list[int]:
    return sorted({step for row in rows for step in row.series.step})


def _mark_steps(axes: Any, steps: list[int]) -> None:
    """Name about eight of the columns; their steps need not be evenly spaced."""
    stride = max(len(steps) // 8, 1)
    places = list(range(0, len(steps), stride))
    axes.set_xticks(places, [str(steps[place]) for place in places], fontsize=8)


def _floats(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _draw_activations(record: WatchRecord) -> Any:
    """Means and deviations of every layer, and the loss."""
    from matplotlib import colormaps

    rows, steps = record.layers, _all_steps(record.layers)
    place = {step: i for i, step in enumerate(steps)}
    figure = _figure(10.0, 8.6, _title(record, "means and deviations of what each layer gives"))
    panels = figure.subplots(3, 1, sharex=True, height_ratios=[3, 3, 1.6])
    colours = colormaps["viridis"].resampled(max(len(rows), 2))
    for row in rows:
        x = [place[step] for step in row.series.step]
        colour = colours(row.order)
        panels[0].plot(x, _floats(row.series.mean), color=colour, lw=1.1, alpha=0.9)
        panels[1].plot(x, [v if v > 0 else math.nan for v in _floats(row.series.std)], color=colour, lw=1.1)
    sizes = [abs(v) for row in rows for v in row.series.std if v and math.isfinite(v)]
    usual = sorted(sizes)[len(sizes) // 2] if sizes else 1.0
    panels[0].set_yscale("symlog", linthresh=10.0 ** math.ceil(math.log10(usual)), linscale=1.2)
    panels[1].set_yscale("log")
    panels[0].set_ylabel("mean (linear near 0)")
    panels[1].set_ylabel("standard deviation")
    for series in record.loss:
        at = [place[step] for step in series.step if step in place]
        values = [v for s, v in zip(series.step, _floats(series.value), strict=True) if s in place]
        panels[2].plot(at, values, color=INK, lw=1.2, label=series.optimizer)
    panels[2].set_ylabel("loss")
    panels[2].set_xlabel("step")
    _mark_steps(panels[2], steps)
    for axes in panels:
        axes.grid(lw=0.4, alpha=0.5)
        axes.set_xlim(-0.5, len(steps) - 0.5)
        for finding in record.findings:
            if finding.since_step in place:
                axes.axvline(place[finding.since_step], color=ALARM, lw=0.8, ls=":")
    _colour_key(figure, panels[:2], [layer_label(record, row) for row in rows])
    return figure


def _colour_key(figure: Any, panels: Any, labels: list[str]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    key = figure.colorbar(
        ScalarMappable(Normalize(0, max(len(labels) - 1, 1)), "viridis"), ax=list(panels), aspect=40, pad=0.01
    )
    stride = -(-len(labels) // 28)
    key.set_ticks(list(range(0, len(labels), stride)), labels=labels[::stride], fontsize=7)
    key.ax.invert_yaxis()


def _draw_histograms(record: WatchRecord) -> Any:
    """One strip a layer: time to the right, |x| upwards by powers of two, the logarithm of the count as colour."""
    import numpy as np

    rows = _thinned(record.layers, _MOST_STRIPS)
    n_columns = min(3, len(rows))
    n_rows = -(-len(rows) // n_columns)
    figure = _figure(
        4.2 * n_columns + 0.4, 1.35 * n_rows + 1.0, _title(record, "how large the values are, over time")
    )
    panels = figure.subplots(n_rows, n_columns, squeeze=False)
    image = None
    for axes, row in zip(panels.flat, rows, strict=False):
        counts = np.asarray(row.series.histogram.counts, dtype=float).T
        shares = counts / np.maximum(counts.sum(0), 1)
        shares = np.concatenate([np.repeat(shares[:1], _ZERO_ROWS - 1, axis=0), shares])
        shade = np.log10(np.maximum(shares, 1e-5))
        image = axes.imshow(
            shade, origin="lower", aspect="auto", cmap="magma", vmin=-5, vmax=0, interpolation="nearest"
        )
        axes.set_title(layer_label(record, row), fontsize=8, loc="left", pad=2, color=INK)
        _mark_powers(axes, row.series.histogram.edges)
        _mark_steps(axes, list(row.series.step))
        axes.tick_params(labelsize=6, length=2)
    for axes in panels.flat[len(rows) :]:
        axes.set_axis_off()
    key = figure.colorbar(image, ax=panels.ravel().tolist(), aspect=60, pad=0.01, shrink=0.9)
    key.set_ticks(
        [-5, -4, -3, -2, -1, 0], labels=["none", "0.01 %", "0.1 %", "1 %", "10 %", "all"], fontsize=7
    )
    return figure


def _mark_powers(axes: Any, edges: Sequence[float]) -> None:
    """The first rows are what lies below the first edge, mostly zeros; the last what lies above the last."""
    wanted = [1e-4, 1e-2, 1.0, 100.0]
    places = [
        _ZERO_ROWS + min(range(len(edges)), key=lambda i: abs(math.log(edges[i] / w))) - 0.5 for w in wanted
    ]
    axes.set_yticks([(_ZERO_ROWS - 1) / 2, *places], ["0", "1e-4", "0.01", "1", "100"])


def _thinned(rows: Sequence[Any], most: int) -> list[Any]:
    stride = -(-len(rows) // most)
    return list(rows)[::stride]


def _grid(rows: Sequence[Any], steps: list[int], read: Any) -> Any:
    import numpy as np

    place = {step: i for i, step in enumerate(steps)}
    grid = np.full((len(rows), len(steps)), math.nan)
    for i, row in enumerate(rows):
        for step, value in zip(row.series.step, read(row.series), strict=True):
            grid[i, place[step]] = math.nan if value is None else value
    return grid


def _heat(axes: Any, grid: Any, labels: list[str], steps: list[int], **look: Any) -> Any:
    image = axes.imshow(grid, aspect="auto", interpolation="nearest", **look)
    axes.set_facecolor("#d9d9d9")
    axes.set_yticks(range(len(labels)), labels, fontsize=7 if len(labels) < 50 else 5)
    _mark_steps(axes, steps)
    axes.set_xlabel("step")
    return image


def _draw_dead(record: WatchRecord) -> Any:
    """The share of zeros: of rectifiers where there are any, else of every layer."""
    rectifiers = [row for row in record.layers if row.type.startswith(_RECTIFIERS)]
    rows = _thinned(rectifiers or record.layers, _MOST_ROWS)
    steps = _all_steps(rows)
    grid = _grid(rows, steps, lambda series: series.zero_fraction)
    what = "zeros among what the ReLUs give" if rectifiers else "zeros among what each layer gives"
    figure = _figure(10.0, 1.8 + 0.28 * len(rows), _title(record, what))
    axes = figure.subplots()
    labels = [layer_label(record, row) for row in rows]
    image = _heat(axes, 100 * grid, labels, steps, cmap="RdYlBu_r", vmin=0, vmax=100)
    dead = [
        (column, line)
        for line, row in enumerate(rows)
        for column, step in enumerate(steps)
        if grid[line, column] > 0.9
    ]
    axes.plot([x for x, _ in dead], [y for _, y in dead], "x", color="white", ms=3, mew=0.7)
    figure.colorbar(image, ax=axes, aspect=30, pad=0.01, label="percent zero (x: over 90)")
    return figure


def _draw_updates(record: WatchRecord) -> Any:
    """Gradients and relative updates of the weights; biases live on another scale."""
    import numpy as np

    weights = [one for one in record.parameters if len(one.shape) > 1] or list(record.parameters)
    rows = _thinned(weights, _MOST_ROWS)
    steps = _all_steps(rows)
    labels = [one.name for one in rows]
    figure = _figure(13.0, 2.0 + 0.24 * len(rows), _title(record, "gradients and updates of the weights"))
    left, right = figure.subplots(1, 2, sharey=True)
    with np.errstate(all="ignore"):
        norms = np.log10(_grid(rows, steps, lambda series: series.grad_norm))
        ratios = np.log10(_grid(rows, steps, lambda series: series.update_ratio))
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
