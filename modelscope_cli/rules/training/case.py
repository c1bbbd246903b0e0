"""What a rule of training is, what it is given, and what it says. Standard library only."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Protocol

from modelscope_cli.records.naming import some
from modelscope_cli.records.training_facts import GRADIENT, Birth, OptimizerFacts
from modelscope_cli.records.watch import (
    Event,
    ScalarSeries,
    TrainingFacts,
    WatchedLayer,
    WatchedParameter,
    labelling,
)
from modelscope_cli.rules.rule import ListedRule
from modelscope_cli.rules.training.progress import MIN_STEPS, CourseOfTraining

LASTING = 3  # records in a row, the last of the run among them, before something is called a state
MIN_RECORDS = 8  # fewer tell nothing about a course
_RISEN = 5.0  # times the loss at first
FEW_STEPS = 5  # after so many what is certain is certain

Row = WatchedLayer | WatchedParameter


class Link(IntEnum):
    """Where a finding stands in the chain from cause to symptom: what is wrong earlier explains what is later."""

    DATA = 1
    BOOKKEEPING = 2
    WIRING = 3
    INITIALISATION = 4
    STEP_SIZE = 5
    LAYERS = 6
    STANDSTILL = 7
    LOSS = 8


class Course(Protocol):
    """What is judged: how a training went, be it watched or our own."""

    @property
    def steps(self) -> int: ...
    @property
    def layers(self) -> tuple[WatchedLayer, ...]: ...
    @property
    def parameters(self) -> tuple[WatchedParameter, ...]: ...
    @property
    def loss(self) -> tuple[ScalarSeries, ...]: ...
    @property
    def lr(self) -> tuple[ScalarSeries, ...]: ...
    @property
    def events(self) -> tuple[Event, ...]: ...
    @property
    def births(self) -> tuple[Birth, ...]: ...


@dataclass(frozen=True, slots=True)
class Case:
    """A training, and what is known of it beside its series.

    Attributes:
        progress: whether it learns.
    """

    course: Course
    facts: TrainingFacts
    progress: CourseOfTraining

    @property
    def fails(self) -> bool:
        """Whether it is plain that the training does not learn; False as long as that cannot be told."""
        return self.progress.learns is False

    def called(self, label: str) -> str | None:
        """Return the line that runs a model; None where that is not known."""
        return next((one.called for one in self.facts.models if one.model == label), None)

    def may_fail(self) -> bool:
        """Whether a run of some length does not learn, as far as can be told."""
        main = self.progress.main
        return self.progress.learns is not True and main is not None and main.n >= 2 * MIN_STEPS

    def told(self, kind: str) -> "Iterator[TrainingSighting]":
        """Give what was noticed once while the training ran, as a sighting."""
        event = next((event for event in self.course.events if event.kind == kind), None)
        if event is not None:
            yield TrainingSighting(None, event.step or 0, None, event.message)

    def optimizer(self, label: str) -> OptimizerFacts | None:
        return next((one for one in self.facts.optimizers if one.optimizer == label), None)

    def rates(self, label: str) -> dict[int, float]:
        """Return the lowest learning rate of an optimizer's groups by step."""
        found: dict[int, float] = {}
        for series in self.course.lr:
            if series.optimizer == label:
                for step, rate in zip(series.step, series.value, strict=True):
                    found[step] = min(found.get(step, math.inf), rate or 0.0)
        return found

    def weights(self) -> list[WatchedParameter]:
        """Return the weights that an optimizer has; biases and scales of norms live on another scale."""
        return [one for one in self.course.parameters if len(one.shape) > 1 and one.series.step]

    def born(self, *kinds: str) -> Birth | None:
        """Return where the first value that is not finite began, of these kinds; None where none did."""
        return next((birth for birth in self.course.births if not kinds or birth.what in kinds), None)

    def row_of(self, birth: Birth) -> Row | None:
        rows: tuple[Row, ...] = self.course.parameters if birth.what == GRADIENT else self.course.layers
        place = birth.model, birth.name, birth.call
        return next((row for row in rows if (row.model, row.name, getattr(row, "call", 0)) == place), None)

    def link_of_break(self, *kinds: str) -> Link:
        """Return how early in the chain a value that is not finite stands.

        Where it began in this way, and the loss was as ever until then, it is a cause. Where the loss had risen
        far, it is what comes of steps that are too large. Where it began elsewhere, it follows from that.
        """
        birth = self.born()
        if birth is None:
            return Link.LAYERS
        if birth.what not in kinds:
            return Link.STANDSTILL
        return Link.WIRING if self._is_calm_until(birth.step) else Link.LAYERS

    def rate_jump(self) -> tuple[int, float, float] | None:
        """Return step, rate before and rate after of a jump to ten times all that was before."""
        for series in self.course.lr:
            highest = 0.0
            pairs = list(zip(series.step, (value or 0.0 for value in series.value), strict=True))
            for (_, before), (step, after) in pairwise(pairs):
                highest = max(highest, before)
                if step >= MIN_RECORDS and before > 0 and after >= 10 * before and after >= 10 * highest:
                    return step, before, after
        return None

    def _is_calm_until(self, step: int) -> bool:
        jump = self.rate_jump()
        if jump is not None and jump[0] <= step:
            return False
        for series in self.course.loss:
            pairs = zip(series.step, series.value, strict=True)
            values = [abs(value) for at, value in pairs if at < step and value is not None]
            values = [value for value in values if math.isfinite(value)]
            if values and values[-1] > _RISEN * max(values[0], 1e-3):
                return False
        return True

    def naming(self) -> Callable[[Row], str]:
        """Return what names a row."""
        return labelling(self.course.layers, self.course.parameters)

    def names(self, rows: Sequence[Row]) -> str:
        """Return the names of the first few, and how many more there are."""
        return some(map(self.naming(), rows))

    def beside(self, rows: Sequence[Row], word: str = "also") -> str:
        """Name others, as the end of a sentence; nothing where there are none."""
        return f"; {word} {self.names(rows)}" if rows else ""

    def followed(self, rows: Sequence[tuple[int, Any, Row]]) -> str:
        """Name what comes after the first of `(step, _, layer or parameter)`, sorted by step."""
        word = "then" if rows[-1][0] > rows[0][0] else "also"
        return self.beside([row for _, _, row in rows[1:]], word)


@dataclass(frozen=True, slots=True)
class TrainingSighting:
    """One place where a rule is broken.

    Attributes:
        row: the layer or parameter; None for the training as a whole.
        step: since when; None for what holds over the whole run.
        place: the line of the script it is about.
        severity, link, hint: where they differ from the rule's.
    """

    row: Row | None
    step: int | None
    value: float | None
    message: str
    place: str | None = None
    severity: str | None = None
    link: Link | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class TrainingRule(ListedRule):
    """A named check of a run: `judge` gives every place where it lies beyond `threshold`.

    Attributes:
        link: where it stands in the chain from cause to symptom.
    """

    threshold: float
    link: Link
    judge: Callable[[Case, float], Iterator[TrainingSighting]]


def is_inferred(optimizer: str) -> bool:
    """Tell whether steps were not told of by an optimizer, but seen from the parameters that change."""
    return optimizer.partition("#")[0] == "inferred"


def known(values: Sequence[float | None]) -> list[float]:
    """Return the values that there are."""
    return [value for value in values if value is not None]


def lasting(values: Sequence[float | None], is_wrong: Callable[[float], bool]) -> int | None:
    """Return where the last unbroken run of wrong values begins, None where there is none long enough."""
    start = len(values)
    while start > 0 and (value := values[start - 1]) is not None and is_wrong(value):
        start -= 1
    return start if len(values) - start >= LASTING else None


def share_of_steps(steps: Sequence[int], is_wrong: Sequence[bool]) -> float:
    """Return the share of a run's steps in which something holds, by the records that stand for them.

    The first steps are recorded one by one and later ones ever more rarely: a record stands for the steps
    up to the next.
    """
    if not steps:
        return 0.0
    lengths = [after - step for step, after in pairwise(steps)]
    lengths.append(lengths[-1] if lengths else 1)
    return sum(length for length, wrong in zip(lengths, is_wrong, strict=True) if wrong) / sum(lengths)
