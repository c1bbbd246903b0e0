"""What `train` and `lrfind` return."""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from modelscope_cli.records.run import Record, to_plain
from modelscope_cli.records.training_facts import Birth
from modelscope_cli.records.watch import (
    UNKNOWN,
    Event,
    ScalarSeries,
    Series,
    TrainingFinding,
    WatchedLayer,
    WatchedParameter,
)

TRAINED_WEIGHTS = "model.safetensors"  # in the folder of one training


@dataclass(frozen=True, slots=True)
class Measurement:
    """Loss and accuracy on the validation images after `step` steps."""

    step: int
    loss: float | None
    accuracy: float


@dataclass(frozen=True, slots=True)
class Training:
    """One training.

    Attributes:
        settings: how it was trained.
        steps: number of updates of the weights.
        training_accuracy: accuracy over the last third of the recorded steps, each before its update; None for
            labels of one class.
        held_out_labels: each label of the validation images, and how many have it.
        events: in the order they happened.
        verdict, reason: as in `watch`.
    """

    settings: dict[str, Any]
    steps: int
    layers: tuple[WatchedLayer, ...]
    parameters: tuple[WatchedParameter, ...]
    loss: tuple[ScalarSeries, ...]
    lr: tuple[ScalarSeries, ...]
    held_out: tuple[Measurement, ...]
    training_accuracy: float | None = None
    held_out_labels: tuple[tuple[int, int], ...] = ()
    findings: tuple[TrainingFinding, ...] = ()
    verdict: str = UNKNOWN
    reason: str | None = None
    events: tuple[Event, ...] = ()
    births: tuple[Birth, ...] = ()

    @property
    def n_held_out(self) -> int:
        """The number of validation images that could be read."""
        return sum(n for _, n in self.held_out_labels)

    @property
    def guessing(self) -> float:
        """The accuracy of guessing the commonest label of the validation images; 0 without any."""
        return max((n for _, n in self.held_out_labels), default=0) / max(self.n_held_out, 1)

    @property
    def losses(self) -> Series:
        """The loss at every step; None where it was not finite."""
        return tuple(v if v is not None and math.isfinite(v) else None for v in self.loss[0].value)


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
        training: what happened inside; in the document, its keys are beside those of the record.
        near_zero: below this, |x| counts as near zero.
        out_dir, files: the report's folder and what is in it.
    """

    document: ClassVar[str] = "train"
    training: Training
    data: DataInfo
    near_zero: float
    out_dir: str | None = None
    files: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[TrainingFinding, ...]:
        return self.training.findings

    def to_dict(self) -> dict[str, Any]:
        """Return the document: the keys of the training beside the others."""
        rest = {f.name: to_plain(getattr(self, f.name)) for f in fields(self) if f.name != "run"}
        return {**self.run.header(), **rest.pop("training"), **rest}


RECOMMENDED = "valley"  # the most robust to noise
ZERO_GRADIENT = "every gradient is zero, so no rate changes a weight"  # why a sweep stopped


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Learning rates to try; None where the loss never fell by more than its noise.

    Neither the first tenth of the sweep nor its last five steps are considered.

    Attributes:
        steepest: where the smoothed loss falls fastest over the logarithm of the rate.
        valley: where half of the fall is done, at most a third of where three quarters are.
        minimum: a tenth of the rate with the lowest smoothed loss.
    """

    steepest: float | None
    valley: float | None
    minimum: float | None

    @property
    def recommended(self) -> float | None:
        return self.valley


@dataclass(frozen=True)
class RangeTest:
    """A sweep of the learning rate.

    Attributes:
        lr, loss, smoothed: values of every step; a loss is None where it was not finite.
        stopped: why the sweep ended, in words.
        fall: the largest fall of the smoothed loss in the range searched for suggestions.
        noise: the largest fall that is taken for noise, at least 1 % of the first loss. Without a larger fall there
            is no suggestion.
    """

    lr: tuple[float, ...]
    loss: tuple[float | None, ...]
    smoothed: tuple[float | None, ...]
    suggestion: Suggestion
    stopped: str
    fall: float
    noise: float


@dataclass(frozen=True, slots=True)
class LrfindRecord(RangeTest, Record):
    """What `lrfind` returns."""

    document: ClassVar[str] = "lrfind"
    optimizer: str
    data: str
    out_dir: str | None = None
    files: tuple[str, ...] = ()
