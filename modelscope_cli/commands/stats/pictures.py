"""The pictures of `stats`: all distributions in one figure, and a correlation matrix a layer."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.records.naming import label_of
from modelscope_cli.records.stats import ActivationStats, StatsRecord
from modelscope_cli.report import grids, numbers, palette
from modelscope_cli.report.canvas import ABOVE, ACCENT, INK, LINE, new_figure
from modelscope_cli.report.labels import file_stems

CMAP = "RdBu_r"  # blue -1, white 0, red 1
SIDE = 640  # pixels; small matrices are enlarged to about this


def draw_distributions(record: StatsRecord) -> Any:
    """Draw the distribution of every layer side by side, in execution order, and the share of zeros below.

    A column is one output; the darker, the more values lie there, on a logarithmic scale. The line is the mean,
    the band one deviation to each side.
    """
    rows = [row for row in record.layers if row.histogram and row.mean is not None]
    width = min(max(7.0, 0.16 * len(rows) + 2.5), 40.0)
    figure = new_figure(width, 6.4, _title(record))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _draw_densities(upper, rows)
    _draw_zeros(lower, rows, record.near_zero)
    lower.set_xticks(range(len(rows)), [label_of(row) for row in rows], rotation=90, fontsize=7)
    lower.set_xlim(-0.5, len(rows) - 0.5)
    return figure


def _title(record: StatsRecord) -> str:
    images = f"{record.images} image{'s' if record.images != 1 else ''}"
    return f"{record.run.model.heading}, {images}"


def _draw_densities(axes: object, rows: list[ActivationStats]) -> None:
    import numpy as np
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    for x, row in enumerate(rows):
        assert row.histogram is not None
        counts = np.asarray(row.histogram.counts, dtype=float)
        edges = np.asarray(row.histogram.edges)
        shade = np.log1p(counts) / np.log1p(counts.max())
        axes.pcolormesh([x - 0.45, x + 0.45], edges, shade[:, None], cmap="Blues", vmin=0, vmax=1.1)
    positions = np.arange(len(rows))
    mean = np.array([row.mean for row in rows], dtype=float)
    std = np.array([row.std for row in rows], dtype=float)
    axes.errorbar(
        positions, mean, std, fmt="o", ms=2.5, lw=0.9, color=ACCENT, label="mean and one standard deviation"
    )
    # The linear part reaches to a power of ten near the usual deviation, so that no tick falls inside it.
    usual = max(float(np.median(std)), 1e-12)
    axes.set_yscale("symlog", linthresh=10.0 ** math.ceil(math.log10(usual)), linscale=0.8)
    axes.axhline(0, color=INK, lw=0.6)
    axes.set_ylabel("value (linear near 0, then logarithmic)")
    axes.legend(**ABOVE, ncols=3)


def _draw_zeros(axes: object, rows: list[ActivationStats], near_zero: float) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    positions = range(len(rows))
    near = [100 * (row.near_zero_fraction or 0) for row in rows]
    zero = [100 * (row.zero_fraction or 0) for row in rows]
    axes.bar(positions, near, width=0.9, color="#b8c4d6", label=f"|x| < {near_zero:g}")
    axes.bar(positions, zero, width=0.9, color=LINE, label="exactly zero")
    dead = [
        (x, 100 * row.dead_channels / (row.channels or 1)) for x, row in enumerate(rows) if row.dead_channels
    ]
    axes.plot([x for x, _ in dead], [share for _, share in dead], "x", color=ACCENT, label="dead channels")
    axes.set_ylim(0, 100)
    axes.set_ylabel("percent")
    axes.legend(**ABOVE, ncols=3)


def save_correlations(
    rows: Sequence[ActivationStats], matrices: Sequence[Tensor | None], folder: Path
) -> tuple[ActivationStats, ...]:
    """Write the `(C, C)` matrix of every row that has one, and return the rows with the names of the files."""
    named = []
    for row, matrix, stem in zip(rows, matrices, file_stems(rows), strict=True):
        if matrix is None or row.correlation is None:
            named.append(row)
            continue
        file = f"{stem}.png"
        grids.save_png(grids.with_title(draw_matrix(matrix), _matrix_title(row), CMAP), folder / file)
        named.append(replace(row, correlation=replace(row.correlation, file=file)))
    return tuple(named)


def draw_matrix(matrix: Tensor) -> Image.Image:
    """Draw a `(C, C)` matrix of -1..1; rows of channels that never varied are gray."""
    share = (torch.nan_to_num(matrix) + 1) / 2
    colours = (share * (palette.N_COLOURS - 1)).round().to(torch.uint8)
    colours[matrix.isnan()] = palette.FLAT
    return grids.to_image(grids.enlarge(colours[None], max(SIDE, len(matrix)))[0], CMAP)


def _matrix_title(row: ActivationStats) -> str:
    correlation = row.correlation
    mean_abs = numbers.number(correlation.mean_abs) if correlation else ""
    return f"{label_of(row)}   {row.channels} channels   mean |correlation| {mean_abs or 'none'}"


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {"distributions": draw_distributions}
