"""The figures of `watch`: what the layers gave, step by step."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from modelscope_cli.commands.watch.activations import draw_activations
from modelscope_cli.commands.watch.heat import HeatPage
from modelscope_cli.commands.watch.histograms import draw_histograms
from modelscope_cli.records.watch import WatchRecord, labelling
from modelscope_cli.report import training_curves as curves
from modelscope_cli.report.canvas import SHARES, save_figure
from modelscope_cli.report.heat_map import name_powers
from modelscope_cli.report.layer_names import layer_names, parameter_names

_MOSTLY = 0.9  # share of zeros that is marked


def save_figures(
    record: WatchRecord, folder: Path, attempt: Callable[[str], AbstractContextManager[None]]
) -> None:
    """Draw everything there is something to draw of; `attempt` is opened around each figure.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    for name, draw in PICTURES.items():
        if curves.matrices(record.parameters) if name == "gradients" else record.layers:
            with attempt(f"{name}.png was not drawn"):
                save_figure(draw(record), folder / f"{name}.png")


def draw_dead(record: WatchRecord) -> Any:
    """Draw the share of zeros: of rectifiers where there are any, else of every layer."""
    rectifiers = curves.rectifiers(record.layers)
    rows = rectifiers or list(record.layers)
    what = "zeros in the outputs of the ReLUs" if rectifiers else "zeros in each layer's output"
    labels = list(map(labelling(record.layers, record.parameters), rows))
    steps = curves.all_steps(rows)
    grid = curves.grid_of(rows, steps, lambda series: series.zero_fraction)
    page = HeatPage(record, what, layer_names(labels), labels, steps, n_maps=1, width=10.0)
    axes, image = page.draw(100 * grid, "", cmap=SHARES, vmin=0, vmax=100)
    page.key(image, "percent zero")
    mostly = [
        (step, line)
        for line in range(len(rows))
        for step, x in zip(steps, grid[line], strict=True)
        if x > _MOSTLY
    ]
    if mostly:
        x, y = zip(*mostly, strict=True)
        label = f"over {100 * _MOSTLY:g} % zero"
        axes.plot(x, y, "x", color="#f5c542", ms=3.5, mew=0.9, label=label)
    return page.finish()


def draw_updates(record: WatchRecord) -> Any:
    """Draw gradients and relative updates of the weights; biases live on another scale."""
    import numpy as np

    rows = curves.matrices(record.parameters)
    steps = curves.all_steps(rows)
    names = parameter_names(row.name for row in rows)
    labels = list(map(labelling(record.layers, record.parameters), rows))
    page = HeatPage(
        record, "gradients and updates of the weights", names, labels, steps, n_maps=2, width=15.0
    )
    with np.errstate(all="ignore"):
        norms = np.log10(curves.grid_of(rows, steps, lambda series: series.grad_norm))
        ratios = np.log10(curves.grid_of(rows, steps, lambda series: series.update_ratio))
    norms[~np.isfinite(norms)] = math.nan
    ratios[~np.isfinite(ratios)] = math.nan
    usual = norms[np.isfinite(norms)]
    low, high = (math.floor(usual.min()), math.ceil(usual.max())) if usual.size else (-3, 1)
    high = max(high, low + 1)
    _, image = page.draw(norms, "norm of the gradient", cmap="viridis", vmin=low, vmax=high)
    name_powers(page.key(image), low, high)
    words = "update / weight (about 0.001 is usual, 0.1 is far too much)"
    _, image = page.draw(ratios, words, cmap="RdBu_r", vmin=-6, vmax=0)
    name_powers(page.key(image, extend="both"), -6, 0)
    return page.finish("zero, or none")


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {
    "activations": draw_activations,
    "histograms": draw_histograms,
    "dead_units": draw_dead,
    "gradients": draw_updates,
}
