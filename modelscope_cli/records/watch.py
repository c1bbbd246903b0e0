"""What `watch` returns: series over the steps of a training run, which `train` has as well."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.naming import label
from modelscope_cli.records.run import Record

Series = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """A histogram of |x| at every recorded step.

    Attributes:
        edges: of the bins, the same at every step.
        counts: a row a step: first what lies below the first edge (zeros too), then the bins, last what lies
            above; NaN and infinite values are counted elsewhere. Large tensors give an even sample, scaled up.
    """

    edges: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LayerSeries:
    """What a layer's output looked like; every figure is of its finite values.

    Attributes:
        step: the recorded steps of its optimizer, counted from 0.
        grad_norm: of the loss with respect to the output; None where none arrived.
        histogram: None in `train`.
        dead_fraction: share of channels that are zero at every place of every image, None without channels; in
            `watch` of rectifiers only.
        channels: how many there were at the last record; `dead_channels`: the first 64 of those that were dead
            then. Both in `watch` only.
        saturated_fraction: share of values where a tanh or sigmoid is flat, |tanh| > 0.99 or as near to an end of
            the sigmoid; of a softmax, share of rows that are certain, a probability > 0.999. None for others.
    """

    step: tuple[int, ...]
    mean: Series
    std: Series
    zero_fraction: Series
    near_zero_fraction: Series
    nan_count: tuple[int, ...]
    inf_count: tuple[int, ...]
    grad_norm: Series
    histogram: Magnitudes | None = None
    dead_fraction: Series | None = None
    channels: int | None = None
    dead_channels: tuple[int, ...] = ()
    saturated_fraction: Series | None = None


@dataclass(frozen=True, slots=True)
class WatchedLayer:
    """One call of a layer in one model, over time; or of a function that a module calls by itself.

    Attributes:
        name: qualified name from the model's root; empty for the model itself; `block1.relu#f1` is the first
            `F.relu` that `block1` calls by itself.
        order: place among the calls in the order they were first seen, from 0.
    """

    model: str
    name: str
    type: str
    order: int
    call: int
    series: LayerSeries


@dataclass(frozen=True, slots=True)
class ParameterSeries:
    """How a parameter was trained.

    Attributes:
        grad_norm: as the optimizer received it: averaged over ranks, unscaled, clipped; None where there was none.
        update_ratio: norm of the change by the step over the norm before it; None where that is 0.
    """

    step: tuple[int, ...]
    grad_norm: Series
    weight_norm: Series
    update_ratio: Series


@dataclass(frozen=True, slots=True)
class WatchedParameter:
    """A parameter over time; `shape` tells weights from biases, `optimizer` who trains it."""

    model: str
    name: str
    optimizer: str
    shape: tuple[int, ...]
    series: ParameterSeries


def labelling(
    layers: Iterable[WatchedLayer], parameters: Iterable[WatchedParameter]
) -> Callable[[WatchedLayer | WatchedParameter], str]:
    """Return what names each of the rows of one training.

    It gives `relu#1`, or `Generator/relu#1` where there are several models.
    """
    models = {layer.model for layer in layers} | {parameter.model for parameter in parameters}

    def name_of(row: WatchedLayer | WatchedParameter) -> str:
        name = row.name or row.model
        if isinstance(row, WatchedLayer) and row.call:
            name = label(name, row.call)
        return f"{row.model}/{name}" if len(models) > 1 and row.name else name

    return name_of


@dataclass(frozen=True, slots=True)
class ScalarSeries:
    """A number of one optimizer over time, at more steps than are recorded: loss, learning rate, milliseconds."""

    optimizer: str
    step: tuple[int, ...]
    value: Series
    group: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a skipped step, a compiled model, a rank that disagrees."""

    step: int | None
    kind: str
    message: str


LOSS, INPUT, OUTPUT, BETWEEN, GRADIENT, PARAMETER = (
    *("loss", "input", "output", "between", "gradient", "parameter"),
)
"""Where NaN and infinite values begin; `BETWEEN` is what a module computes between its layers."""


@dataclass(frozen=True, slots=True)
class Birth:
    """What was not finite first, where all before it was.

    Attributes:
        what: one of `LOSS`, `INPUT`, `OUTPUT`, `BETWEEN`, `GRADIENT`, and `PARAMETER`: the step has made it so.
        name: of the layer or the parameter in the model; empty for the model itself, and for the loss.
        call: which call of the layer.
    """

    what: str
    step: int
    model: str
    name: str
    call: int

    @property
    def words(self) -> str:
        """Say it: `conv2 is not finite`."""
        name = label(self.name or self.model, self.call)
        return {
            LOSS: "the loss is not finite, though the output of every layer is",
            INPUT: f"the input of {name} is not finite",
            OUTPUT: f"{name} is not finite",
            BETWEEN: f"what {name} computes between its layers is not finite",
            GRADIENT: f"the gradient of {name} is not finite",
            PARAMETER: f"{name} is not finite after step {self.step}, whose gradients were",
        }[self.what]


@dataclass(frozen=True, slots=True)
class TrainingFinding:
    """One violation of a rule of training: a `Finding` with the step since when.

    Attributes:
        layer: the call or parameter it was seen at; None for the run as a whole.
    """

    code: str
    rule: str
    severity: str
    layer: str | None
    since_step: int | None
    value: float | None
    threshold: float | None
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class WatchRecord(Record):
    """What `watch` returns.

    Attributes:
        steps: optimizer steps taken, those of the busiest optimizer.
        recorded: how many of them were looked at closely.
        layers: by model, in the order they first ran. `parameters`: in the order of the optimizers.
        exit_code: the script's own; None where it was killed.
        ranks: processes that took part.
        births: where values that are not finite began, in the order of the steps.
    """

    steps: int
    recorded: int
    exit_code: int | None
    ranks: int
    near_zero: float
    layers: tuple[WatchedLayer, ...]
    parameters: tuple[WatchedParameter, ...]
    loss: tuple[ScalarSeries, ...]
    lr: tuple[ScalarSeries, ...]
    step_ms: tuple[ScalarSeries, ...]
    events: tuple[Event, ...]
    findings: tuple[TrainingFinding, ...] = ()
    births: tuple[Birth, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the document; the seed is the script's own affair."""
        return {**super(WatchRecord, self).to_dict(), "seed": None}
