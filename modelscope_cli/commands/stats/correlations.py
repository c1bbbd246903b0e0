"""The pictures of `stats --correlation`: one matrix a layer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.records.stats import ActivationStats
from modelscope_cli.report import grids, numbers, palette
from modelscope_cli.report.labels import file_stems, label_of

CMAP = "RdBu_r"  # blue -1, white 0, red 1
SIDE = 640  # pixels; small matrices are enlarged to about this


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
        grids.save_png(grids.with_title(draw_matrix(matrix), _title(row), CMAP), folder / file)
        named.append(replace(row, correlation=replace(row.correlation, file=file)))
    return tuple(named)


def draw_matrix(matrix: Tensor) -> Image.Image:
    """Draw a `(C, C)` matrix of -1..1; rows of channels that never varied are gray."""
    share = (torch.nan_to_num(matrix) + 1) / 2
    colours = (share * (palette.N_COLOURS - 1)).round().to(torch.uint8)
    colours[matrix.isnan()] = palette.FLAT
    return grids.to_image(grids.enlarge(colours[None], max(SIDE, len(matrix)))[0], CMAP)


def _title(row: ActivationStats) -> str:
    correlation = row.correlation
    mean_abs = numbers.number(correlation.mean_abs) if correlation else ""
    return f"{label_of(row)}   {row.channels} channels   mean |correlation| {mean_abs or 'none'}"
