"""The types of the rules of training: input, rule and sighting. Standard library only."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any

from modelscope_cli.records.findings import WARNING, WARNING_OR_ERROR
from modelscope_cli.records.naming import some
from modelscope_cli.records.training_facts import GRADIENT, Birth
from modelscope_cli.records.trials import Fix, Trials
from modelscope_cli.records.watch import (
    Event,
    ParameterFacts,
    ScalarSeries,
    TrainingFacts,
    WatchedLayer,
    WatchedParameter,
    labelling,
)
from modelscope_cli.rules.rule import ListedRule, texts_of
from modelscope_cli.rules.training.progress import AT_CHANCE, MIN_STEPS, CourseOfTraining

LASTING = 3  # records in a row up to the last of the run that make a state
SURE = 4  # steps with an output of zeros: of 175 healthy runs one had it for three, and none for longer
MIN_RECORDS = 8  # fewer cannot show a trend
_RISEN = 5.0  # times the loss at first
FEW_STEPS = 5  # after which facts are reliable

_PLACED = re.compile(r"(?s)(.*?)(?: \((\S+:\d+)\))?")

Row = WatchedLayer | WatchedParameter


class Link(IntEnum):
    """The position of a finding in the chain from cause to symptom: earlier faults explain later ones."""

    DATA = 1
    BOOKKEEPING = 2
    WIRING = 3
    INITIALISATION = 4
    STEP_SIZE = 5
    LAYERS = 6
    STANDSTILL = 7
    LOSS = 8
    SPEED = 9  # independent of whether the model learns


@dataclass(frozen=True, slots=True)
class Course:
    """The series of a training, of `watch` or `train`."""

    steps: int  # of the optimizer with the most
    layers: tuple[WatchedLayer, ...]
    parameters: tuple[WatchedParameter, ...]
    loss: tuple[ScalarSeries, ...]
    lr: tuple[ScalarSeries, ...]
    events: tuple[Event, ...]
    births: tuple[Birth, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A training and the facts about it."""

    course: Course
    facts: TrainingFacts
    progress: CourseOfTraining  # whether it learns
    trials: Trials  # what became of it with one thing changed

    @property
    def fails(self) -> bool:
        """Whether the training certainly does not learn; False if that is unknown."""
        return self.progress.learns is False

    @property
    def is_no_better(self) -> bool:
        """Whether the last losses are no better than the first or than guessing; False if the training learns."""
        main, chance = self.progress.main, AT_CHANCE * (self.progress.chance or math.inf)
        return (
            self.progress.learns is not True and main is not None and main.end >= min(main.first, chance) > 0
        )

    def called(self, label: str) -> str | None:
        """Return the line that runs a model; None if unknown."""
        return next((one.called for one in self.facts.models if one.model == label), None)

    def may_fail(self) -> bool:
        """Whether a run of sufficient length does not learn, or may not."""
        main = self.progress.main
        return self.progress.learns is not True and main is not None and main.n >= 2 * MIN_STEPS

    def told(self, kind: str) -> "Iterator[TrainingSighting]":
        """Yield the first event of one kind as a sighting, with the line at the end of its message as the place.

        One that was told after the last step is about the whole run.
        """
        event = next((event for event in self.course.events if event.kind == kind), None)
        if event is not None:
            message, place = _PLACED.fullmatch(event.message).groups()  # type: ignore[union-attr]
            since = event.step or 0
            yield TrainingSighting(None, since if since < self.course.steps else 0, None, message, place)

    def made(self, label: str) -> str | None:
        """Return the line that makes an optimizer; None if unknown."""
        return next((one.made for one in self.facts.optimizers if one.optimizer == label), None)

    def rates(self, label: str) -> dict[int, float]:
        """Return the lowest learning rate of an optimizer's groups by step."""
        lowest: dict[int, float] = {}
        for series in self.course.lr:
            if series.optimizer == label:
                for step, rate in zip(series.step, series.value, strict=True):
                    lowest[step] = min(lowest.get(step, math.inf), rate or 0.0)
        return lowest

    def weights(self) -> list[WatchedParameter]:
        """Return the weights that an optimizer holds, without biases and scales of norms."""
        return [one for one in self.course.parameters if len(one.shape) > 1 and one.series.step]

    def stated(self) -> list[tuple[WatchedParameter, ParameterFacts]]:
        """Return the parameters of the models that ran, with their facts."""
        return [(one, one.facts) for one in self.course.parameters if one.facts is not None]

    def position(self, one: WatchedParameter) -> int:
        """Return the place in the pass of the last layer at or below the owner of a parameter; -1 if unknown."""
        owner = one.name.rpartition(".")[0]
        rows = enumerate((layer.model, f"{layer.name}.") for layer in self.course.layers)
        return max(
            (at for at, (model, name) in rows if model == one.model and name.startswith(f"{owner}.")),
            default=-1,
        )

    def born(self, *kinds: str) -> Birth | None:
        """Return the first non-finite value if it is of these kinds, else None."""
        return next((birth for birth in self.course.births if not kinds or birth.what in kinds), None)

    def row_of(self, birth: Birth) -> Row | None:
        rows: tuple[Row, ...] = self.course.parameters if birth.what == GRADIENT else self.course.layers
        place = birth.model, birth.name, birth.call
        return next((row for row in rows if (row.model, row.name, getattr(row, "call", 0)) == place), None)

    def link_of_break(self, *kinds: str) -> Link:
        """Return the position of a non-finite value in the chain.

        If it began with one of these kinds while the loss was normal, it is a cause. If the loss had risen far, it
        follows from steps that are too large. If it began elsewhere, it follows from that.
        """
        birth = self.born()
        if birth is None:
            return Link.LAYERS
        if birth.what not in kinds:
            return Link.STANDSTILL
        return Link.WIRING if self._is_calm_until(birth.step) else Link.LAYERS

    def rate_jump(self) -> tuple[int, float, float] | None:
        """Return step, rate before and rate after of a jump to ten times all earlier rates."""
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
            values = [abs(value) for at, value in series.finite if at < step]
            if values and values[-1] > _RISEN * max(values[0], 1e-3):
                return False
        return True

    def naming(self) -> Callable[[Row], str]:
        return labelling(self.course.layers, self.course.parameters)

    def names(self, rows: Sequence[Row]) -> str:
        """Return the first few names and the number of others."""
        return some(map(self.naming(), rows))

    def beside(self, rows: Sequence[Row], word: str = "also") -> str:
        """Return the other names as the end of a sentence; empty without any."""
        return f"; {word} {self.names(rows)}" if rows else ""

    def followed(self, rows: Sequence[tuple[int, Any, Row]]) -> str:
        """Return the names after the first of `(step, _, layer or parameter)`, sorted by step."""
        others = [row for _, _, row in rows[1:]]
        if not others or rows[-1][0] == rows[0][0]:
            return self.beside(others)
        return f"; {self.names(others)} {'follow' if others[1:] else 'follows'}"


@dataclass(frozen=True, slots=True)
class TrainingSighting:
    """One violation of a rule."""

    row: Row | None  # the layer or parameter; None for the training as a whole
    step: int | None  # the first step; None for the whole run
    value: float | None
    message: str
    place: str | None = None  # the line of the script
    # severity, link, hint: if they differ from the level, link and hint of the rule
    severity: str | None = None
    link: Link | None = None
    hint: str | None = None
    proved: Fix | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRule(ListedRule):
    """A rule about a run: `judge` yields every violation of `threshold`."""

    threshold: float
    link: Link  # position in the chain from cause to symptom
    judge: "TrainingJudge"


_CAUSES_ONE = "an error follows from it"
TrainingJudge = Callable[[Case, float], Iterator[TrainingSighting]]


def training_rule(
    code: str, name: str, severity: str, threshold: float, link: Link, *, is_alone: bool = False, **texts: str
) -> Callable[[TrainingJudge], TrainingRule]:
    """Make a rule of the function that judges by it; see `texts_of` for its docstring.

    Args:
        is_alone: whether no other finding can follow from its own. A cause is as severe as the worst that follows.
    """

    def decorate(judge: TrainingJudge) -> TrainingRule:
        fields: dict[str, Any] = {**texts_of(judge), **texts, "link": link, "judge": judge}
        if severity == WARNING and not is_alone:
            fields["error_if"] = ", or ".join(filter(None, [fields["error_if"], _CAUSES_ONE]))
        which = WARNING_OR_ERROR if fields["error_if"] else severity
        return TrainingRule(code=code, name=name, severity=which, threshold=threshold, **fields)

    return decorate


def is_inferred(optimizer: str) -> bool:
    """Tell whether the steps of an optimizer were inferred from changing parameters."""
    return optimizer.partition("#")[0] == "inferred"


def known(values: Sequence[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def lasting(values: Sequence[float | None], is_wrong: Callable[[float], bool]) -> int | None:
    """Return the start of the wrong values at the end of a series; None if there are too few."""
    start = len(values)
    while start > 0 and (value := values[start - 1]) is not None and is_wrong(value):
        start -= 1
    return start if len(values) - start >= LASTING else None


def zeros_since(layer: WatchedLayer, is_wrong: Callable[[float], bool]) -> int | None:
    """Return the step since when the share of zeros of an output is wrong; None if it is not, or not for long."""
    steps, start = layer.series.step, lasting(layer.series.zero_fraction, is_wrong)
    return None if start is None or steps[-1] - steps[start] < SURE - 1 else steps[start]


def share_of_steps(steps: Sequence[int], is_wrong: Sequence[bool]) -> float:
    """Return the share of a run's steps for which a condition holds; a record counts for those up to the next."""
    if not steps:
        return 0.0
    lengths = [after - step for step, after in pairwise(steps)]
    lengths.append(lengths[-1] if lengths else 1)
    return sum(length for length, wrong in zip(lengths, is_wrong, strict=True) if wrong) / sum(lengths)
