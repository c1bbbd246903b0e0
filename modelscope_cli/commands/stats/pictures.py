"""The picture of `stats`: all distributions in one figure; those of `--correlation` are in `correlation.py`."""

import math
from typing import Any

from modelscope_cli.commands.stats.correlation import save_correlations
from modelscope_cli.records.naming import counted, label_of
from modelscope_cli.records.stats import ActivationStats, StatsRecord
from modelscope_cli.report.canvas import ACCENT, INK, LINE
from modelscope_cli.report.layer_names import layer_names
from modelscope_cli.report.layer_panels import Panel, layer_panels

__all__ = ["PICTURES", "draw_distributions", "save_correlations"]


def draw_distributions(record: StatsRecord) -> Any:
    """Draw the distribution of every layer beside the next, in execution order, and its share of zeros.

    The darker, the more values lie there, on a logarithmic scale. The point is the mean, the bar one standard
    deviation to each side.
    """
    rows = [row for row in record.layers if row.histogram and row.mean is not None]
    names = layer_names(map(label_of, rows))
    figure, (densities, zeros) = layer_panels(_title(record), [names], [3, 1], 6.4)
    _draw_densities(densities, rows)
    _draw_zeros(zeros, rows, record.near_zero)
    return figure


def _title(record: StatsRecord) -> str:
    return f"{record.run.model.heading}, {counted(record.images, 'image')}"


def _draw_densities(panel: Panel, rows: list[ActivationStats]) -> None:
    import numpy as np
    from matplotlib.patches import Patch

    _draw_shades(panel, rows)
    places = np.arange(len(rows))
    mean = np.array([row.mean for row in rows], dtype=float)
    std = np.array([row.std for row in rows], dtype=float)
    words = "mean and one standard deviation"
    panel.spread(places, mean, std, fmt="o", ms=2.5, lw=0.9, color=ACCENT, label=words)
    # The linear part reaches to a power of ten near the smaller deviations, so that no tick falls inside it and
    # layers whose values explode do not flatten all others.
    small = max(float(np.quantile(std, 0.1)), 1e-12) if len(std) else 1.0
    panel.scale("symlog", linthresh=10.0 ** math.ceil(math.log10(small)), linscale=0.8)
    panel.level(0, color=INK, lw=0.6)
    panel.say("value (linear near 0, then logarithmic)")
    shade = Patch(color="#6aaed6", label="the darker, the more values (logarithmic)")
    panel.legend(handles=[shade, *panel.axes.get_legend_handles_labels()[0]], ncols=3)


def _draw_shades(panel: Panel, rows: list[ActivationStats]) -> None:
    """Draw the bins of all histograms as boxes: one artist, where one a layer takes seconds."""
    import numpy as np
    from matplotlib import colormaps

    corners, shades = [], []
    for place, row in enumerate(rows):
        assert row.histogram is not None
        counts = np.asarray(row.histogram.counts, dtype=float)
        edges = np.asarray(row.histogram.edges)
        filled = np.flatnonzero(counts)
        low, high = edges[filled], edges[filled + 1]
        sides = np.full(len(filled), place - 0.45), np.full(len(filled), place + 0.45)
        box = [(sides[0], low), (sides[1], low), (sides[1], high), (sides[0], high)]
        corners.append(np.stack([np.stack(corner, -1) for corner in box], 1))
        shades.append(np.log1p(counts[filled]) / np.log1p(counts.max(initial=1)))
    if corners:
        colours = colormaps["Blues"](np.concatenate(shades) / 1.1)
        panel.boxes(np.concatenate(corners), facecolors=colours, edgecolors="none", zorder=0)


def _draw_zeros(panel: Panel, rows: list[ActivationStats], near_zero: float) -> None:
    places = range(len(rows))
    near = [100 * (row.near_zero_fraction or 0) for row in rows]
    zero = [100 * (row.zero_fraction or 0) for row in rows]
    panel.bars(places, near, width=0.9, color="#b8c4d6", label=f"|x| < {near_zero:g}")
    panel.bars(places, zero, width=0.9, color=LINE, label="exactly zero")
    dead = {
        x: 100 * row.dead_channels / (row.channels or 1) for x, row in enumerate(rows) if row.dead_channels
    }
    if dead:
        panel.plot(list(dead), list(dead.values()), "x", color=ACCENT, label="dead channels")
    panel.limits(0, 100)
    panel.say("percent")
    panel.legend(ncols=3)


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {"distributions": draw_distributions}
