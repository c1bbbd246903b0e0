"""The panels of a training, which the figures of `train` and `watch` draw: curves and maps over steps."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from modelscope_cli.records.naming import is_rectifier
from modelscope_cli.records.watch import (
    InputSeries,
    ScalarSeries,
    TrainingFinding,
    WatchedLayer,
    WatchedParameter,
    WatchRecord,
)
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import SHARES

if TYPE_CHECKING:
    from modelscope_cli.records.train import Training

_LARGEST = 1e300
Row = WatchedLayer | WatchedParameter
Trained: TypeAlias = "WatchRecord | Training"
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
class Line:
    """A series over steps. `tone`: the index of its look, from 0."""

    name: str
    step: Sequence[int]
    value: Sequence[float | None]
    tone: int = 0


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """The series of a training as a whole; of the learning rates those that differ within an optimizer."""

    loss: Sequence[Line]
    validation: Sequence[Line]
    rates: Sequence[Line]
    accuracy: Sequence[Line]


def curves_of(training: Trained) -> TrainingCurves:
    """Return the curves of a training."""
    losses, accuracy = _criteria(training) if isinstance(training, WatchRecord) else _held_out(training)
    of_first = {one.optimizer: one.value for one in reversed(training.lr)}
    rates = [one for one in training.lr if one.group == 0 or one.value != of_first[one.optimizer]]
    return TrainingCurves(
        _lines(training.loss, "training loss"), losses, _lines(rates, "learning rate"), accuracy
    )


def _held_out(training: "Training") -> tuple[list[Line], list[Line]]:
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
    names = [f"{one.name} {one.place or ''}" + ", evaluation" * (not one.is_training) for one in scored]
    accuracy = [
        Line(name, one.series.step, one.series.accuracy, n)
        for n, (name, one) in enumerate(zip(names, scored, strict=True))
    ]
    return losses, accuracy


def _lines(every: Sequence[ScalarSeries], name: str) -> list[Line]:
    """Return a line per series; with several, the name includes the optimizer and group."""
    names = [f"{name}, {one.optimizer}" + (f" group {one.group}" if one.group else "") for one in every]
    names = names if len(every) > 1 else [name]
    return [
        Line(words, one.step, one.value, n) for n, (words, one) in enumerate(zip(names, every, strict=False))
    ]


def floats(values: Sequence[float | None]) -> list[float]:
    """Return a series for matplotlib: NaN for missing numbers, and no number so large that an axis overflows."""
    return [
        max(min(value, _LARGEST), -_LARGEST) if value is not None and math.isfinite(value) else math.nan
        for value in values
    ]


def all_steps(rows: Sequence[Row]) -> list[int]:
    return sorted({step for row in rows for step in row.series.step})


def rectifiers(layers: Sequence[WatchedLayer]) -> list[WatchedLayer]:
    return [row for row in layers if is_rectifier(row.type)]


def matrices(parameters: Sequence[WatchedParameter]) -> list[WatchedParameter]:
    """Return the trained parameters of more than one dimension; all trained ones if there are none."""
    trained = [row for row in parameters if row.series.step]
    return [row for row in trained if len(row.shape) > 1] or trained


def first_of(values: Sequence[Any]) -> Any:
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)


def last_of(values: Sequence[Any]) -> Any:
    return first_of(values[::-1])


def extent(series: InputSeries) -> list[str]:
    """Return `from -2 to 3` for the values of an input; nothing without any."""
    lows, highs = ([value for value in ends if value is not None] for ends in (series.min, series.max))
    both = lows and highs
    return [f"from {numbers.number(min(lows))} to {numbers.number(max(highs))}"] if both else []


def finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """Return the exponential moving average with weight 0.9 and bias correction."""
    averages: list[float | None] = []
    total = weight = 0.0
    for value in values:
        if value is None or not math.isfinite(value):
            averages.append(None)
            continue
        total, weight = 0.9 * total + 0.1 * value, 0.9 * weight + 0.1
        averages.append(total / weight)
    return averages


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A number of layers or parameters over the steps, as colours."""

    title: str
    rows: Sequence[Row]
    steps: Sequence[int]
    grid: Any  # `(rows, steps)`, NaN for missing numbers
    look: dict[str, Any]  # how matplotlib colours it
    extend: str = "neither"  # at which ends numbers may be beyond the colours
    most: float = math.inf  # numbers above it are crossed


def heat_map(rows: Sequence[Row], key: str, most: float = math.inf) -> HeatMap:
    """Return the map of one of `NUMBERS`; fractions are in percent."""
    import numpy as np
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    steps = all_steps(rows)
    place = {step: i for i, step in enumerate(steps)}
    grid = np.full((len(rows), len(steps)), math.nan)
    for line, row in zip(grid, rows, strict=True):
        line[[place[step] for step in row.series.step]] = floats(getattr(row.series, key))
    if key in ("zero_fraction", "dead_fraction"):
        look = {"cmap": SHARES, "vmin": 0, "vmax": 100}
        return HeatMap(f"{NUMBERS[key]}, %", rows, steps, 100 * grid, look, most=most)
    if key == "mean":
        usual = typical_sizes(rows)[1]
        far = max([2 * usual, *abs(grid[np.isfinite(grid)])])
        norm: Any = SymLogNorm(usual, vmin=-far, vmax=far) if far > 10 * usual else Normalize(-far, far)
        return HeatMap(NUMBERS[key], rows, steps, grid, {"cmap": "RdBu_r", "norm": norm})
    grid[~(np.isfinite(grid) & (grid > 0))] = math.nan
    if key == "update_ratio":
        title = f"{NUMBERS[key]} (usual: about 0.001; 0.1 is far too large)"
        return HeatMap(title, rows, steps, grid, {"cmap": "RdBu_r", "norm": LogNorm(1e-6, 1)}, "both")
    low, _, high = typical_sizes(rows, key)
    look = {"cmap": "viridis", "norm": LogNorm(low, max(high, 2 * low))}
    title = "norm of the gradient" if key == "grad_norm" else NUMBERS[key]
    return HeatMap(title, rows, steps, grid, look)


def typical_sizes(rows: Sequence[Row], key: str = "std") -> tuple[float, float, float]:
    """Return the smallest, a typical and the largest standard deviation or norm, without zeros."""
    sizes = sorted(v for row in rows for v in finite(getattr(row.series, key)) if v)
    if not sizes:
        return 0.1, 1.0, 1.0
    return sizes[0], 10.0 ** math.ceil(math.log10(sizes[len(sizes) // 2])), sizes[-1]


def by_layer(findings: Iterable[TrainingFinding]) -> dict[str, list[TrainingFinding]]:
    by_label: dict[str, list[TrainingFinding]] = {}
    for one in findings:
        if one.layer is not None:
            by_label.setdefault(one.layer, []).append(one)
    return by_label


def by_step(findings: Iterable[TrainingFinding]) -> dict[int, list[TrainingFinding]]:
    """Return the findings by the step where they begin, in order."""
    dated = [(one.since_step, one) for one in findings if one.since_step is not None]
    steps = sorted({step for step, _ in dated})
    return {step: [one for since, one in dated if since == step] for step in steps}
