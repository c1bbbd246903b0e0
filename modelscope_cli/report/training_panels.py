"""The panels of a training, which the figures and pages of `train` and `watch` draw: curves and maps over steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.naming import is_rectifier
from modelscope_cli.records.train import Training
from modelscope_cli.records.watch import (
    ScalarSeries,
    WatchedLayer,
    WatchedParameter,
    WatchRecord,
)
from modelscope_cli.report.canvas import SHARES
from modelscope_cli.report.page.charts import Line

Row = WatchedLayer | WatchedParameter
Trained = WatchRecord | Training
NUMBERS = {
    "mean": "mean",
    "std": "standard deviation",
    "zero_fraction": "zero",
    "dead_fraction": "dead channels",
    "grad_norm": "gradient",
    "weight_norm": "weight",
    "update_ratio": "update / weight",
}
"""What the series of layers and parameters are called, in figures and on pages."""


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """The series of a training as a whole; of the learning rates those that differ within an optimizer."""

    loss: Sequence[Line]
    validation: Sequence[Line]
    rates: Sequence[Line]
    accuracy: Sequence[Line]


def curves_of(training: Trained) -> TrainingCurves:
    """Return the curves of a training; both figures and pages draw them."""
    losses, accuracy = _held_out(training) if isinstance(training, Training) else _criteria(training)
    rates = [one for one in training.lr if one.group == 0 or _differs(one, training.lr)]
    return TrainingCurves(
        _lines(training.loss, "training loss"), losses, _lines(rates, "learning rate"), accuracy
    )


def _held_out(training: Training) -> tuple[list[Line], list[Line]]:
    """Return the validation losses and the accuracies of `train`."""
    step = [one.step for one in training.held_out]
    losses = [Line("validation loss", step, [one.loss for one in training.held_out], 1)]
    accuracy = [Line("validation images", step, [one.accuracy for one in training.held_out])]
    return losses if step else [], accuracy if len(step) > 1 else []


def _criteria(record: WatchRecord) -> tuple[list[Line], list[Line]]:
    """Return the validation losses of `watch`, and the accuracies in training and validation."""
    every = record.facts.criteria
    validated = [one for one in every if not one.is_training and one.series.step]
    losses = [
        Line(f"{one.name} {one.place or ''}, evaluation", one.series.step, one.series.value, n)
        for n, one in enumerate(validated, 1)
    ]
    scored = [one for one in every if any(v is not None for v in one.series.accuracy)]
    named = [f"{one.name} {one.place or ''}" + ", evaluation" * (not one.is_training) for one in scored]
    accuracy = [
        Line(name, one.series.step, one.series.accuracy, n)
        for n, (name, one) in enumerate(zip(named, scored, strict=True))
    ]
    return losses, accuracy


def _differs(one: ScalarSeries, every: Sequence[ScalarSeries]) -> bool:
    return one.value != next(other.value for other in every if other.optimizer == one.optimizer)


def _lines(every: Sequence[ScalarSeries], name: str) -> list[Line]:
    """Return a line per series; with several, the name includes the optimizer and group."""
    names = [f"{name}, {one.optimizer}" + (f" group {one.group}" if one.group else "") for one in every]
    names = names if len(every) > 1 else [name]
    return [
        Line(words, one.step, one.value, n) for n, (words, one) in enumerate(zip(names, every, strict=False))
    ]


def floats(values: Sequence[float | None]) -> list[float]:
    """Return a series for matplotlib, with NaN for missing numbers."""
    return [math.nan if value is None else value for value in values]


def all_steps(rows: Sequence[Row]) -> list[int]:
    """Return every step at which any of these rows was recorded."""
    return sorted({step for row in rows for step in row.series.step})


def rectifiers(layers: Sequence[WatchedLayer]) -> list[WatchedLayer]:
    return [row for row in layers if is_rectifier(row.type)]


def matrices(parameters: Sequence[WatchedParameter]) -> list[WatchedParameter]:
    """Return the trained parameters of more than one dimension; all trained ones if there are none."""
    trained = [row for row in parameters if row.series.step]
    return [row for row in trained if len(row.shape) > 1] or trained


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Return the exponential moving average with weight 0.9 and bias correction."""
    averages: list[float | None] = []
    total = weight = 0.0
    for value in values:
        if value is None:
            averages.append(None)
            continue
        total, weight = 0.9 * total + 0.1 * value, 0.9 * weight + 0.1
        averages.append(total / weight)
    return averages


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A number of layers or parameters over the steps, as colours.

    Attributes:
        grid: `(rows, steps)`, NaN for missing numbers.
        look: how matplotlib colours it.
        powers: the lowest and the highest power of ten of a scale of log10 values.
        most: numbers above it are crossed.
    """

    title: str
    rows: Sequence[Row]
    steps: Sequence[int]
    grid: Any
    look: dict[str, Any]
    powers: tuple[int, int] | None = None
    most: float = math.inf


def mean_map(layers: Sequence[WatchedLayer]) -> HeatMap:
    from matplotlib.colors import Normalize, SymLogNorm

    steps, grid = _grid(layers, "mean")
    usual = typical_sizes(layers)[1]
    far = max([2 * usual, *abs(grid[_is_finite(grid)])])
    norm: Any = SymLogNorm(usual, vmin=-far, vmax=far) if far > 10 * usual else Normalize(-far, far)
    return HeatMap(NUMBERS["mean"], layers, steps, grid, {"cmap": "RdBu_r", "norm": norm})


def std_map(layers: Sequence[WatchedLayer]) -> HeatMap:
    from matplotlib.colors import LogNorm

    steps, grid = _grid(layers, "std")
    grid[grid <= 0] = math.nan
    low, _, high = typical_sizes(layers)
    look = {"cmap": "viridis", "norm": LogNorm(low, max(high, 2 * low))}
    return HeatMap(NUMBERS["std"], layers, steps, grid, look)


def share_map(layers: Sequence[WatchedLayer], key: str, most: float = math.inf) -> HeatMap:
    """Return a fraction in percent; percentages above `most` are crossed."""
    steps, grid = _grid(layers, key)
    look = {"cmap": SHARES, "vmin": 0, "vmax": 100}
    return HeatMap(f"{NUMBERS[key]}, %", layers, steps, 100 * grid, look, most=most)


def gradient_map(weights: Sequence[WatchedParameter]) -> HeatMap:
    steps, grid = _grid(weights, "grad_norm", is_log=True)
    finite = grid[_is_finite(grid)]
    low, high = (math.floor(finite.min()), math.ceil(finite.max())) if finite.size else (-3, 1)
    high = max(high, low + 1)
    look = {"cmap": "viridis", "vmin": low, "vmax": high}
    return HeatMap("norm of the gradient", weights, steps, grid, look, (low, high))


def update_map(weights: Sequence[WatchedParameter]) -> HeatMap:
    steps, grid = _grid(weights, "update_ratio", is_log=True)
    title = f"{NUMBERS['update_ratio']} (usual: about 0.001; 0.1 is far too large)"
    return HeatMap(title, weights, steps, grid, {"cmap": "RdBu_r", "vmin": -6, "vmax": 0}, (-6, 0))


def _grid(rows: Sequence[Row], key: str, *, is_log: bool = False) -> tuple[list[int], Any]:
    """Return the steps, and a series of each row as `(rows, steps)` or its log10; NaN for missing numbers."""
    import numpy as np

    steps = all_steps(rows)
    place = {step: i for i, step in enumerate(steps)}
    grid = np.full((len(rows), len(steps)), math.nan)
    for line, row in zip(grid, rows, strict=True):
        line[[place[step] for step in row.series.step]] = floats(getattr(row.series, key))
    if is_log:
        with np.errstate(all="ignore"):
            grid = np.log10(grid)
        grid[~np.isfinite(grid)] = math.nan
    return steps, grid


def _is_finite(grid: Any) -> Any:
    import numpy as np

    return np.isfinite(grid)


def typical_sizes(layers: Sequence[WatchedLayer]) -> tuple[float, float, float]:
    """Return the smallest, a typical and the largest standard deviation."""
    sizes = sorted(v for row in layers for v in row.series.std if v and math.isfinite(v))
    if not sizes:
        return 0.1, 1.0, 1.0
    return sizes[0], 10.0 ** math.ceil(math.log10(sizes[len(sizes) // 2])), sizes[-1]
