"""What `train` returns: series over the steps of a training, and what they show."""

from dataclasses import dataclass, fields
from typing import Any

from modelscope_cli.records.run import Record, Shape, to_plain

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """A number at each of `step`, counted from 0: the loss, a learning rate. None where it was not finite."""

    optimizer: str
    step: tuple[int, ...]
    value: Values


@dataclass(frozen=True, slots=True)
class ActivationCurves:
    """What a layer gave at each of `step`; every figure is of the finite values of one batch.

    Attributes:
        dead_fraction: share of channels that are zero at every place of every picture; None without channels.
        grad_norm: of the loss with respect to the output; None where none arrived.
    """

    step: tuple[int, ...]
    mean: Values
    std: Values
    zero_fraction: Values
    near_zero_fraction: Values
    dead_fraction: Values
    nan_count: tuple[int, ...]
    inf_count: tuple[int, ...]
    grad_norm: Values


@dataclass(frozen=True, slots=True)
class LayerCurves:
    """One call of a layer over time."""

    name: str
    type: str
    order: int
    call: int
    series: ActivationCurves


@dataclass(frozen=True, slots=True)
class WeightCurves:
    """How a parameter was trained.

    Attributes:
        grad_norm: as the optimizer received it, clipped.
        weight_norm: before the step. `update_ratio`: norm of the change over it; None where that is 0.
    """

    step: tuple[int, ...]
    grad_norm: Values
    weight_norm: Values
    update_ratio: Values


@dataclass(frozen=True, slots=True)
class ParameterCurves:
    """A trained parameter over time; `shape` tells weights from biases."""

    name: str
    shape: Shape
    series: WeightCurves


@dataclass(frozen=True, slots=True)
class Onset:
    """One thing that went wrong: a finding with the step since when.

    Attributes:
        layer: the call it was seen at; None for the training as a whole.
        variant: of `--vary`; empty without.
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
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened at a step: `early-stop`, `non-finite-loss`."""

    step: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Loss and share of right answers on the held-out pictures after `step` steps."""

    step: int
    loss: float | None
    accuracy: float


@dataclass(frozen=True, slots=True)
class Training:
    """One training.

    Attributes:
        name: what differs between variants, `init=xavier norm=none`; empty without `--vary`.
        settings: how it was trained.
        steps: changes of the weights that were made.
        events: in the order they happened.
    """

    name: str
    settings: dict[str, Any]
    steps: int
    layers: tuple[LayerCurves, ...]
    parameters: tuple[ParameterCurves, ...]
    loss: tuple[Curve, ...]
    lr: tuple[Curve, ...]
    held_out: tuple[Measurement, ...]
    findings: tuple[Onset, ...] = ()
    events: tuple[Happening, ...] = ()

    @property
    def losses(self) -> Values:
        return self.loss[0].value


@dataclass(frozen=True, slots=True)
class DataInfo:
    """What was trained on; `skipped` are files that could not be read."""

    source: str
    classes: tuple[str, ...]
    training_pictures: int
    held_out_pictures: int
    size: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainRecord(Record):
    """What `train` returns.

    Attributes:
        trainings: one, or with `--vary` one a variant.
        near_zero: below this, |x| counts as near zero.
        out_dir, files: the report's folder and what is in it.
    """

    trainings: tuple[Training, ...]
    data: DataInfo
    near_zero: float
    out_dir: str | None = None
    files: tuple[str, ...] = ()

    @property
    def is_study(self) -> bool:
        """Whether variants were compared."""
        return bool(self.trainings[0].name)

    @property
    def findings(self) -> tuple[Onset, ...]:
        return tuple(finding for training in self.trainings for finding in training.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the document: the keys of the one training, or all of them under `variants`."""
        rest = {
            f.name: to_plain(getattr(self, f.name))
            for f in fields(self)
            if f.name not in ("run", "trainings")
        }
        if not self.is_study:
            (training,) = to_plain(self.trainings)
            del training["name"]
            return {**self.run.header(), **training, **rest}
        findings = to_plain(self.findings)
        return {**self.run.header(), "variants": to_plain(self.trainings), "findings": findings, **rest}
