"""The figures of `stats`: distributions, and the matrices of `--correlation`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelscope_cli.records.naming import counted, label_of
from modelscope_cli.records.stats import ActivationStats, StatsRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import ACCENT, INK, LINE, MISSING, axes_at, new_figure, save_figure
from modelscope_cli.report.layer_axis import POINTS, Panel, layer_names, layer_panels
from modelscope_cli.report.numbers import file_stems

if TYPE_CHECKING:
    from torch import Tensor


def alike_together(likeness: Any) -> list[int]:
    """Return an order of n items in which similar ones are neighbours.

    Average linkage by nearest-neighbour chains, `O(n^2)` (Murtagh, 1983); the leaves of its tree from left to
    right, each pair of branches flipped so that their most similar ends meet.

    Args:
        likeness: `(n, n)`, symmetric, finite; the larger, the more alike.
    """
    import numpy as np

    n = len(likeness)
    near = np.array(likeness, dtype=float)
    np.fill_diagonal(near, -np.inf)
    whole = np.array(near)
    sizes = np.ones(n)
    leaves: dict[int, list[int]] = {i: [i] for i in range(n)}
    chain: list[int] = []
    while len(leaves) > 1:
        if not chain:
            chain.append(next(iter(leaves)))
        last = chain[-1]
        best = int(near[last].argmax())
        if len(chain) > 1 and near[last, chain[-2]] >= near[last, best]:
            best = chain[-2]
        if len(chain) < 2 or best != chain[-2]:
            chain.append(best)
            continue
        del chain[-2:]
        leaves[best] = _joined(leaves[best], leaves.pop(last), whole)
        row = (sizes[best] * near[best] + sizes[last] * near[last]) / (sizes[best] + sizes[last])
        near[best], near[:, best] = row, row
        near[best, best] = -np.inf
        near[last], near[:, last] = -np.inf, -np.inf
        sizes[best] += sizes[last]
    return next(iter(leaves.values()), [])


def _joined(a: list[int], b: list[int], likeness: Any) -> list[int]:
    """Join two sequences, flipped so that their most similar ends meet."""
    ways = [(a, b), (a, b[::-1]), (a[::-1], b), (a[::-1], b[::-1])]
    first, second = max(ways, key=lambda way: likeness[way[0][-1], way[1][0]])
    return first + second


_CMAP = "RdBu_r"  # blue -1, white 0, red 1
# Inches: the matrix, its margins, a line of text, the colour bar.
_SIDE, _LEFT, _TOP, _RIGHT, _FOOT, _LINE, _KEY = 6.4, 0.75, 0.8, 1.1, 0.95, 0.15, 0.14
_ROW = 0.155  # from one channel number to the next


def save_correlations(
    rows: Sequence[ActivationStats], matrices: "Sequence[Tensor | None]", folder: Path
) -> tuple[ActivationStats, ...]:
    """Write the `(C, C)` matrix of every row that has one; return the rows with the file names."""
    with_files = []
    for row, matrix, stem in zip(rows, matrices, file_stems(rows), strict=True):
        if matrix is None or row.correlation is None:
            with_files.append(row)
            continue
        file = f"{stem}.png"
        save_figure(draw_correlation(row, matrix), folder / file)
        with_files.append(replace(row, correlation=replace(row.correlation, file=file)))
    return tuple(with_files)


def draw_correlation(row: ActivationStats, matrix: "Tensor") -> Any:
    """Draw a `(C, C)` matrix of -1..1 with similar channels side by side; constant ones are gray."""
    values = matrix.numpy()
    order = order_of(values)
    size = (_LEFT + _SIDE + _RIGHT, _TOP + _SIDE + _FOOT)
    figure = new_figure(*size, _correlation_title(row), is_laid_out=False)
    axes = axes_at(figure, _LEFT, _TOP, _SIDE, _SIDE)
    axes.set_facecolor(MISSING)
    image = axes.imshow(
        values[order][:, order], cmap=_CMAP, vmin=-1, vmax=1, interpolation="nearest", aspect="auto"
    )
    stride = -(-len(order) // int(_SIDE / _ROW))
    places = range(0, len(order), stride)
    texts = [str(order[place]) for place in places]
    axes.set_xticks(places, texts, rotation=90, fontsize=POINTS)
    axes.set_yticks(places, texts, fontsize=POINTS)
    which = "channel" if stride == 1 else f"channel; every {stride}th is labelled"
    axes.set_xlabel(which)
    axes.set_ylabel(which)
    key = figure.colorbar(image, cax=axes_at(figure, _LEFT + _SIDE + 0.15, _TOP, _KEY, _SIDE))
    key.set_label("correlation: red positive, blue negative", fontsize=9)
    key.ax.tick_params(labelsize=POINTS)
    _explain(figure, row)
    return figure


def order_of(values: Any) -> list[int]:
    """Return the channels ordered by absolute correlation, similar ones as neighbours, constant ones last."""
    import numpy as np

    varied = np.flatnonzero(np.isfinite(values.diagonal()))
    constant = np.flatnonzero(~np.isfinite(values.diagonal()))
    likeness = np.nan_to_num(np.abs(values[np.ix_(varied, varied)]))
    return [int(varied[place]) for place in alike_together(likeness)] + constant.tolist()


def _explain(figure: Any, row: ActivationStats) -> None:
    text = "Similar channels are next to each other, regardless of sign."
    constant = (row.channels or 0) - (row.correlation.channels if row.correlation else 0)
    if constant:
        text += f" Gray: {counted(constant, 'channel')} that never varied."
    figure.text(
        _LEFT / figure.get_figwidth(), 1 - 0.5 / figure.get_figheight(), text, fontsize=8.5, color=INK
    )


def _correlation_title(row: ActivationStats) -> str:
    mean_abs = numbers.number(row.correlation.mean_abs) if row.correlation else ""
    return (
        f"{label_of(row)}, {counted(row.channels or 0, 'channel')}: mean |correlation| {mean_abs or 'none'}"
    )


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
    panel.level(0, color=INK, lw=0.6)
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
    panel.bars(places, near, height=0.9, color="#b8c4d6", label=f"|x| < {near_zero:g}")
    panel.bars(places, zero, height=0.9, color=LINE, label="exactly zero")
    dead = {
        x: 100 * row.dead_channels / (row.channels or 1) for x, row in enumerate(rows) if row.dead_channels
    }
    if dead:
        panel.plot(list(dead), list(dead.values()), "x", color=ACCENT, label="dead channels")
    panel.axes.set_xlim(0, 100)
    panel.say("percent")
    panel.legend()


# The figures of `record.plot()`; the first is the default.
FIGURES = {"distributions": draw_distributions}
