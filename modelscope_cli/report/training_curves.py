"""What the figures of a training are made of, of one that we ran or of one that was watched: series over steps."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.records.naming import is_rectifier
from modelscope_cli.records.watch import WatchedLayer, WatchedParameter
from modelscope_cli.report.canvas import save_figure

Row = WatchedLayer | WatchedParameter
Read = Callable[[Any], Sequence[float | None]]


def save_curves(figure: Any, path: Path) -> None:
    """Write a figure of a training, at the size in which its small words can be read.

    Raises:
        CannotRunError: the file cannot be written (exit 4).
    """
    save_figure(figure, path, 110)


def floats(values: Sequence[float | None], scale: float = 1.0) -> list[float]:
    """Return a series as matplotlib draws it: with a gap where a number is missing."""
    return [math.nan if value is None else scale * value for value in values]


def all_steps(rows: Sequence[Row]) -> list[int]:
    """Return every step at which one of these was recorded."""
    return sorted({step for row in rows for step in row.series.step})


def rectifiers(layers: Sequence[WatchedLayer]) -> list[WatchedLayer]:
    return [row for row in layers if is_rectifier(row.type)]


def matrices(parameters: Sequence[WatchedParameter]) -> list[WatchedParameter]:
    """Return the weights; biases and norms live on another scale."""
    return [row for row in parameters if len(row.shape) > 1]


def grid_of(rows: Sequence[Row], steps: Sequence[int], read: Read) -> Any:
    """Return one series of each row as `(rows, steps)`, NaN where a row has no number."""
    import numpy as np

    place = {step: i for i, step in enumerate(steps)}
    grid = np.full((len(rows), len(steps)), math.nan)
    for line, row in zip(grid, rows, strict=True):
        line[[place[step] for step in row.series.step]] = floats(read(row.series))
    return grid


def draw_heat(axes: Any, grid: Any, **look: Any) -> Any:
    """Draw rows over steps as colours; return what a colour key is made of."""
    axes.set_xlabel("step")
    return axes.imshow(grid, aspect="auto", interpolation="nearest", **look)
