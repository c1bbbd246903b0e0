"""The figure of `stats`: distributions."""

import math
from typing import Any

from modelscope_cli.records.naming import counted, label_of
from modelscope_cli.records.stats import ActivationStats, StatsRecord
from modelscope_cli.report.canvas import ACCENT, INK, LINE
from modelscope_cli.report.layer_axis import Panel, layer_names, layer_panels


def draw_distributions(record: StatsRecord) -> Any:
    """Draw the distributions of all layers in execution order, downwards, and their fractions of zeros.

    Shades are densities on a logarithmic scale. The point is the median, the bar the range of the middle half: a
    standard deviation would reach to values that no layer has, such as those below 0 of a ReLU.
    """
    rows = [row for row in record.layers if row.histogram and row.mean is not None]
    names = layer_names(map(label_of, rows))
    title = f"{record.run.model.heading}, {counted(record.images, 'image')}"
    figure, (densities, zeros) = layer_panels(title, [names], [3, 1])
    _draw_densities(densities, rows)
    _draw_zeros(zeros, rows, record.near_zero)
    return figure


def _draw_densities(panel: Panel, rows: list[ActivationStats]) -> None:
    import numpy as np
    from matplotlib.patches import Patch

    _draw_shades(panel, rows)
    places = np.arange(len(rows))
    std = np.array([row.std for row in rows], dtype=float)
    low, middle, high = np.array([_quartiles(row) for row in rows]).reshape(-1, 3).T
    by = np.stack([middle - low, high - middle])
    look: dict[str, Any] = {"fmt": "o", "ms": 2.5, "lw": 0.9, "color": ACCENT}
    panel.axes.errorbar(middle, places, xerr=by, **look, label="median and quartiles")
    # The linear part reaches to a power of ten near the smaller deviations, so that no tick falls inside it and
    # layers whose values explode do not flatten all others.
    small = max(float(np.quantile(std, 0.1)), 1e-12) if len(std) else 1.0
    panel.axes.set_xscale("symlog", linthresh=10.0 ** math.ceil(math.log10(small)), linscale=0.8)
    panel.axes.axvline(0, color=INK, lw=0.6)
    panel.say("value (linear near 0, then logarithmic)")
    shade = Patch(color="#6aaed6", label="darker: more values (logarithmic)")
    panel.legend(handles=[shade, *panel.axes.get_legend_handles_labels()[0]])


def _quartiles(row: ActivationStats) -> tuple[float, float, float]:
    """Return the quartiles of the values of a layer, interpolated in its histogram."""
    import numpy as np

    assert row.histogram is not None
    below = np.cumsum([0, *row.histogram.counts])
    first, middle, last = np.interp(
        [0.25 * below[-1], 0.5 * below[-1], 0.75 * below[-1]], below, row.histogram.edges
    )
    return float(first), float(middle), float(last)


def _draw_shades(panel: Panel, rows: list[ActivationStats]) -> None:
    """Draw the bins of all histograms as boxes of one artist; one artist per layer takes seconds."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    corners, shades = [], []
    for place, row in enumerate(rows):
        assert row.histogram is not None
        counts = np.asarray(row.histogram.counts, dtype=float)
        edges = np.asarray(row.histogram.edges)
        filled = np.flatnonzero(counts)
        low, high = edges[filled], edges[filled + 1]
        sides = np.full(len(filled), place - 0.45), np.full(len(filled), place + 0.45)
        box = [(low, sides[0]), (low, sides[1]), (high, sides[1]), (high, sides[0])]
        corners.append(np.stack([np.stack(corner, -1) for corner in box], 1))
        shades.append(np.log1p(counts[filled]) / np.log1p(counts.max(initial=1)))
    if corners:
        colours = colormaps["Blues"](np.concatenate(shades) / 1.1)
        every: Any = np.concatenate(corners)
        boxes = PolyCollection(every, facecolors=colours, edgecolors="none", zorder=0)
        panel.axes.add_collection(boxes)


def _draw_zeros(panel: Panel, rows: list[ActivationStats], near_zero: float) -> None:
    places = range(len(rows))
    near = [100 * (row.near_zero_fraction or 0) for row in rows]
    zero = [100 * (row.zero_fraction or 0) for row in rows]
    panel.axes.barh(places, near, height=0.9, color="#b8c4d6", label=f"|x| < {near_zero:g}")
    panel.axes.barh(places, zero, height=0.9, color=LINE, label="exactly zero")
    dead = {
        x: 100 * row.dead_channels / (row.channels or 1) for x, row in enumerate(rows) if row.dead_channels
    }
    if dead:
        panel.axes.plot(list(dead.values()), list(dead), "x", color=ACCENT, label="dead channels")
    panel.axes.set_xlim(0, 100)
    panel.say("percent")
    panel.legend()
