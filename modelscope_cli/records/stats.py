"""What `stats` returns."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from modelscope_cli.records.display import Row, column, counter, figure, hidden, shape, share, words
from modelscope_cli.records.run import HookReport, Record, Shape

# Optional figures that cost extra, and the column of each.
COLUMN_OF_FIGURE = {"zero": "zero", "near_zero": "near_zero", "channels": "dead", "histogram": "histogram"}

# Standard deviation of the scores of the classes; MS206 says where it comes from
LARGE_SCORES = 30.0

_QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)")


def quantiles_in(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that name a quantile, `p` and a percentage: `p01`, `p50`, `p99.9`."""
    return tuple(dict.fromkeys(key for key in columns if _QUANTILE.fullmatch(key)))


@dataclass(frozen=True, slots=True)
class BatchNormDrift(Row):
    """One batch norm in train mode: the batch statistics, and the running ones that it would use in eval mode.

    Figures are over the channels that vary, if any does; those of several batches are of all their values.

    Attributes:
        momentum: share of the batch in the next running value, so that one batch moves the mean by `mean_gap` times
            this; None if all batches have the same weight.
        mean_gap: root mean square of (batch mean - running mean) / running std.
        var_ratio: geometric mean of batch variance / running variance; the extremes are `var_ratio_min`, `_max`.
        is_frozen: no parameter of it is trained, but its running statistics change.
    """

    name: str
    type: str
    order: int
    call: int
    channels: int
    momentum: float | None
    mean_gap: float
    var_ratio: float
    var_ratio_min: float
    var_ratio_max: float
    is_frozen: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram: `counts[i]` values lie in `[edges[i], edges[i + 1])`; `sampled`: of an even sample."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class ActivationStats(Row):
    """One row of `stats`: one output tensor of a layer, over all images.

    Calls of a layer with parameters are one row, as those of one without any at the same place among the others.

    Every figure is of the finite values; the others are counted.

    Attributes:
        output: which tensor of the output, empty where there is only one.
        shape: of the first batch. `numel` counts all elements seen.
        std: divided by n.
        zero_fraction, near_zero_fraction: share of exact zeros, and of |x| below the stated threshold.
        quantiles: by their names, such as `p50`: the smallest value with at least p % of the values at or below
            it, rounded to bfloat16 (0.4 %). None if not requested.
        channels, dead_channels: None where the output has no channels; dead is zero over all images.
        dead_indices: which channels are dead, counted from 0.
        problem: why there are no figures; then they are None.
        calls: how many calls of one pass the row is of, the most in any batch.
        shapes: those of the calls in the first batch, each once.
    """

    name: str
    type: Annotated[str, words(rank=0)]
    order: Annotated[int, hidden()]
    call: int
    output: str
    shape: Annotated[Shape, shape(rank=8)]
    dtype: Annotated[str, words(is_shown=False)]
    numel: Annotated[int, hidden()]
    mean: Annotated[float | None, figure(rank=2)] = None
    std: Annotated[float | None, figure()] = None
    min: Annotated[float | None, figure(rank=5)] = None
    max: Annotated[float | None, figure(rank=4)] = None
    rms: Annotated[float | None, figure(rank=10)] = None
    zero_fraction: Annotated[float | None, share(rank=0, key="zero")] = None
    near_zero_fraction: Annotated[float | None, share("near zero", rank=7, key="near_zero")] = None
    nan_count: Annotated[int, counter("NaN", key="nan")] = 0
    inf_count: Annotated[int, counter(key="inf")] = 0
    channels: Annotated[int | None, column(rank=2)] = None
    dead_channels: Annotated[int | None, column(rank=0, key="dead")] = None
    histogram: Counts | None = None
    problem: str | None = None
    quantiles: dict[str, float] | None = None
    dead_indices: tuple[int, ...] | None = None
    calls: Annotated[int, column(rank=0)] = 1
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True, slots=True)
class InputStats:
    """What one argument of the model held, over all images. Figures are of the finite values; None where there are
    none. `shape`: of the first batch. `name`: empty where the arguments were given in order."""

    shape: Shape
    dtype: str
    numel: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    rms: float | None = None
    nan_count: int = 0
    inf_count: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class StatsRecord(Record):
    """What `stats` returns.

    Attributes:
        layers: in execution order.
        inputs: statistics of each argument of the model.
        near_zero: the threshold, in the unit of the values.
        mode: `eval` or `train`; in train mode `batch_norm` has the drift of every batch norm.
    """

    document: ClassVar[str] = "stats"
    layers: tuple[ActivationStats, ...]
    images: int
    near_zero: float
    not_called: tuple[str, ...] = ()
    mode: str = "eval"
    batch_norm: tuple[BatchNormDrift, ...] = ()
    hooks: tuple[HookReport, ...] = ()
    inputs: tuple[InputStats, ...] = ()
