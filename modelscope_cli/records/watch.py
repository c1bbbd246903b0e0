"""What `watch` returns: series over the steps of a training run, which `train` has as well."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from modelscope_cli.records.display import Row
from modelscope_cli.records.naming import label
from modelscope_cli.records.run import Record
from modelscope_cli.records.training_facts import Birth, OptimizerFacts, RankFacts, ScheduleFacts, TimeFacts
from modelscope_cli.records.trials import Fix, TrialRow

Series = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """A histogram of |x| at every recorded step.

    Attributes:
        edges: of the bins, the same at every step.
        counts: a row a step: first what is below the first edge (zeros too), then the bins, last what is
            above; NaN and infinite values are counted elsewhere. Large tensors give an even sample, scaled up.
    """

    edges: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LayerSeries:
    """Statistics of a layer's output by step, over its finite values.

    Attributes:
        step: the recorded steps of its optimizer, counted from 0.
        grad_norm: of the loss with respect to the output; None where none arrived.
        non_finite_since: the first recorded step from which on every record to the last has NaN or infinite
            values; None if the last one has none.
        histogram: None in `train`.
        dead_fraction: share of channels that are zero at every place of every image, of rectifiers only; None
            without channels.
        channels: how many there were at the last record; `dead_channels`: the first 64 of those that were dead
            then.
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
    non_finite_since: int | None = None
    histogram: Magnitudes | None = None
    dead_fraction: Series | None = None
    channels: int | None = None
    dead_channels: tuple[int, ...] = ()
    saturated_fraction: Series | None = None

    @classmethod
    def of(
        cls,
        step: tuple[int, ...],
        moments: Sequence[Any],
        rounded: Callable[[float], float] = float,
        **more: Any,
    ) -> Self:
        """Return the series of the `Moments` of each step; `rounded`: applied to roots and quotients."""
        finite = [n for n, m in enumerate(moments) if not m.n_nan + m.n_inf]
        return cls(
            step=step,
            non_finite_since=next(iter(step[finite[-1] + 1 if finite else 0 :]), None),
            mean=tuple(m.mean if m.n else None for m in moments),
            std=tuple(rounded(m.std) if m.n else None for m in moments),
            zero_fraction=tuple(rounded((m.n_zero or 0) / m.n) if m.n else None for m in moments),
            near_zero_fraction=tuple(rounded((m.n_near_zero or 0) / m.n) if m.n else None for m in moments),
            nan_count=tuple(m.n_nan for m in moments),
            inf_count=tuple(m.n_inf for m in moments),
            **more,
        )


@dataclass(frozen=True, slots=True)
class WatchedLayer(Row):
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
    """The gradient and updates of a parameter by step.

    Attributes:
        grad_norm: as the optimizer received it: averaged over ranks, unscaled, clipped; None where there was none.
        update_ratio: norm of the change by the step over the norm before it; None where that is 0.
    """

    step: tuple[int, ...]
    grad_norm: Series
    weight_norm: Series
    update_ratio: Series


@dataclass(frozen=True, slots=True)
class ParameterFacts:
    """Facts about one parameter of a model that ran.

    Attributes:
        has_gradient: whether a backward pass ever gave it one, zeros included.
        has_run: whether the module that owns it was ever called.
        is_severed: its layer ran without gradients, as under no_grad.
        has_changed: whether its values differ from those first recorded.
        start_rms, start_max: root mean square of its first values, and the largest of their sizes.
        was_alike, is_alike: whether all its rows were the same at first, and are now; None for fewer than two
            rows.
        was_loaded: whether load_state_dict has set it.
        is_unused: its layer ran, but no loss depended on its values, also not through `detach()`.
    """

    requires_grad: bool
    has_gradient: bool
    has_run: bool
    is_severed: bool
    has_changed: bool
    start_rms: float
    was_alike: bool | None
    is_alike: bool | None
    was_loaded: bool = False
    is_unused: bool = False
    start_max: float = 0.0


@dataclass(frozen=True, slots=True)
class WatchedParameter(Row):
    """A parameter over time.

    Attributes:
        optimizer: the one that trains it; empty, like the series, if no optimizer that steps has it.
        facts: None for a parameter of no model that ran.
    """

    model: str
    name: str
    optimizer: str
    shape: tuple[int, ...]
    series: ParameterSeries
    facts: ParameterFacts | None = None


@dataclass(frozen=True, slots=True)
class InputSeries:
    """Statistics of an input by step; mean, standard deviation and range are of the finite values.

    Attributes:
        non_finite: how many values were NaN or infinite.
        batch: samples of one pass; `samples`: of all passes since the step before.
        is_alike: whether every sample of a pass was the same as its first.
    """

    step: tuple[int, ...]
    mean: Series
    std: Series
    min: Series
    max: Series
    non_finite: tuple[int, ...]
    batch: tuple[int, ...]
    is_alike: tuple[bool, ...]
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchedInput:
    """A tensor that enters a model (`input`, `input#1`), or its first layer with weights.

    Attributes:
        name: of the argument, or of the layer; `type`: the layer's class, empty for an argument.
        shape: of the first batch.
        is_computed: it is the output of another model, and gradients flow back there.
    """

    model: str
    name: str
    type: str
    shape: tuple[int, ...]
    dtype: str
    is_computed: bool
    series: InputSeries


@dataclass(frozen=True, slots=True)
class CriterionSeries:
    """The inputs and values of a criterion by step.

    Attributes:
        value: the criterion's own mean over the rows; `rows`: how many there were.
        accuracy: share of rows whose largest score is the label's; None where there are no classes, or where the
            largest score of a row is not finite.
        commonest_label, commonest_prediction: the share of the class that most of them are.
        target_variance: of targets that are numbers.
        is_probability: every row of the input is one of probabilities; `is_positive`: nothing there is below zero.
        guessing: the loss of the best constant prediction; None if unknown.
        shared: covariance of predictions and targets over the rows as a share of the variance of the targets, where
            those are vectors.
    """

    step: tuple[int, ...]
    value: Series
    rows: tuple[int, ...]
    accuracy: Series
    commonest_label: Series
    commonest_prediction: Series
    target_variance: Series
    is_probability: tuple[bool, ...]
    is_positive: tuple[bool, ...]
    guessing: Series = ()
    shared: Series = ()


@dataclass(frozen=True, slots=True)
class WatchedCriterion:
    """A criterion of torch's and the line that calls it.

    Attributes:
        is_training: whether it is a loss for training; False if it is only evaluated.
        classes: of the logits; None where it compares numbers.
        made_by: what gave its input: softmax, log_softmax, relu, tanh, sigmoid, hardtanh, exp, softplus, sum, or
            cat of several scores; `softmax over dimension 0` where that is not of the classes; else None.
        shapes: of input and target where they differ and are broadcast.
        is_summed: the criterion is a sum over the batch; `is_weighted`: its classes have weights, so that its best
            constant is not the commonest label.
        label_entropy: of the labels of all recorded steps, smoothed as the criterion does, in nats, corrected for
            their small number.
        commonest_label: the share of the commonest of them.
        absent: of three classes or more, those that none of at least 20 labels for each class is of.
        label: the label of all samples; None if they differ or are unknown.
        optimizers: those that minimise it.
    """

    name: str
    place: str | None
    is_training: bool
    classes: int | None
    made_by: str | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None
    is_summed: bool
    label_entropy: float | None
    commonest_label: float | None
    series: CriterionSeries
    is_weighted: bool = False
    absent: tuple[int, ...] = ()
    label: int | None = None
    optimizers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about the training of a model.

    Attributes:
        called: the line that calls it.
        steps_in_training, steps_in_evaluation: optimizer steps after passes in that mode only.
        evaluation_since: the first step after which it stayed in evaluation mode; None if it did not.
        frozen_modes: classes of its layers whose behaviour in evaluation mode differs.
        norm_values: of the batch norm in training mode with the fewest values per channel, `norm_name`, their
            largest number and the batch size it occurred with.
        dtypes: of its layers' outputs; `has_trained`: whether it ran with gradients in training mode.
        evaluated: number of losses without gradients, in training mode and in evaluation mode.
        loose_runs: number of runs without gradients in training mode; `loose_modes`: classes of layers then whose
            behaviour in training mode differs.
        outputs: number of recorded passes; number of those in which all rows of the output were the same
            although those of the input were not; standard deviation over the rows at first and at last; the
            same of their directions.
        is_fed: gradients flow back through its input; `is_only_fed`: in every pass, to another model.
        makes_targets: in most steps, it or a copy of it runs without a gradient and without a criterion after
            it, as a model does that computes its own targets.
        is_sampled: it received the same input again in evaluation mode, without a backward pass in between.
        validated: number of passes in evaluation mode whose output entered a criterion without gradients, and
            mean and standard deviation of their input. Without such passes, those of one pass without a
            criterion; empty without any pass.
        copies: models whose weights are still bit-identical to the initial weights of this one: label, number
            of runs without gradients (with a backward pass in between), losses without gradients, and whether
            the name of its class says that it is an average, or, after 500 runs, that of a variable that it is a
            target.
        of_one_point: quartiles, over the recorded steps, of the loss if the model mapped all samples to the same
            point; empty if unknown.
    """

    model: str
    called: str | None
    steps_in_training: int
    steps_in_evaluation: int
    evaluation_since: int | None
    frozen_modes: tuple[str, ...]
    norm_values: tuple[int, int] | None
    dtypes: tuple[str, ...]
    has_trained: bool = True
    evaluated: tuple[int, int] = (0, 0)
    loose_modes: tuple[str, ...] = ()
    outputs: tuple[float, ...] = (0, 0, 0.0, 0.0, 0.0, 0.0)
    is_fed: bool = True
    is_only_fed: bool = False
    makes_targets: bool = False
    is_sampled: bool = False
    validated: tuple[float, ...] = ()
    copies: tuple[tuple[str, int, int, bool], ...] = ()
    norm_name: str = ""
    loose_runs: int = 0
    of_one_point: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """Facts about a training in addition to its series.

    Attributes:
        idle: class and line of every optimizer that was made and never stepped.
        backwards: backward passes of the whole run; `ranks`: whether they agree, None in a single process.
        time: where it went; None in a log that does not say.
    """

    inputs: tuple[WatchedInput, ...] = ()
    criteria: tuple[WatchedCriterion, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    models: tuple[ModelFacts, ...] = ()
    idle: tuple[tuple[str, str | None], ...] = ()
    backwards: int = 0
    ranks: RankFacts | None = None
    schedules: tuple[ScheduleFacts, ...] = ()
    time: TimeFacts | None = None


LOOSE = "Tensors"  # the model of trained tensors that belong to no module


def labelling(
    layers: Iterable[WatchedLayer], parameters: Iterable[WatchedParameter]
) -> Callable[[WatchedLayer | WatchedParameter], str]:
    """Return a function that labels the rows of one training.

    Labels are `relu#1`, or `Generator/relu#1` if there are several models; tensors of no model have their own name.
    """
    models = {layer.model for layer in layers} | {
        one.model for one in parameters if one.model != one.optimizer
    }
    models.discard(LOOSE)

    def name_of(row: WatchedLayer | WatchedParameter) -> str:
        name = row.name or row.model
        if isinstance(row, WatchedLayer) and row.call:
            name = label(name, row.call)
        return f"{row.model}/{name}" if len(models) > 1 and row.name and row.model != LOOSE else name

    return name_of


@dataclass(frozen=True, slots=True)
class ScalarSeries:
    """A number of one optimizer over time, at more steps than are recorded: loss, learning rate."""

    optimizer: str
    step: tuple[int, ...]
    value: Series
    group: int = 0

    @property
    def finite(self) -> list[tuple[int, float]]:
        """Steps and values, where these are finite."""
        pairs = zip(self.step, self.value, strict=True)
        return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]


NEVER_TRAINED = "never-trained"
"""The code of the warning that no optimizer stepped and nothing ran backward."""
RUNNING = "running"
"""The code of the warning that the record was made while the run was going on."""
SUMMED, BROADCAST, WRONG_SIGN, SAME_DATA = "summed", "broadcast", "wrong-sign", "same-data"
LEAKS, DROPPED, ACTIVE, NEGATED = "leaks", "dropped", "active", "negated"
UNRELATED, UNHELD, COLLAPSED = "unrelated", "unheld", "collapsed"
UNLOADED, LAYOUT, CLIPPED = "unloaded", "layout", "clipped"
DETACHED, SELF, RANGE, TAUGHT, LISTED = "detached", "compared-with-itself", "out-of-range", "taught", "listed"
CUT, UNWEIGHTED, BACKGROUND = "cut", "unweighted", "background"
POLICY, MADE_AGAIN, MOVING_NORMS, STALE_NORMS = "policy-gradient", "made-again", "moving-norms", "stale-norms"
_UNSEEN = "captured", "compiled", "many-calls", "unmeasured", "unseen", "unwatched"
TOLD = frozenset((*_UNSEEN, "broken", BACKGROUND, MADE_AGAIN, MOVING_NORMS, "rank", "tensors"))
"""Kinds of events that become warnings; those with names are for the rules."""
SPARSE = "sparse"  # fewer steps are recorded than are due


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: a skipped step, a compiled model, a rank that disagrees."""

    step: int | None
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class TrainingFinding(Row):
    """One violation of a rule of training: a `Finding` with the step since when.

    Attributes:
        layer: the call or parameter it was seen at; None for the run as a whole.
        place: the line of the script it is about, `train.py:31`; None where that is not known.
        follows: code of the finding that explains it; None for a cause of its own.
        proved: the trial that removes the cause; None where it was only inferred.
    """

    code: str
    rule: str
    severity: str
    layer: str | None
    since_step: int | None
    value: int | float | None
    threshold: int | float | None
    message: str
    hint: str
    place: str | None = None
    follows: str | None = None
    proved: Fix | None = None


FAULT, SOUND, LEARNING, UNKNOWN = "fault", "nothing wrong", "learning", "cannot tell"
"""The four answers: something is wrong; nothing wrong was found; the same, of a loss that falls but has nothing to
be compared with; and there is too little to tell."""
CRASHED = "crashed"
"""The answer for a script that an exception ended, in place of these four."""


@dataclass(frozen=True, slots=True)
class WatchRecord(Record):
    """What `watch` returns.

    Attributes:
        steps: number of steps of the optimizer that stepped most.
        recorded: how many of them were recorded in full.
        layers: by model, in the order they first ran. `parameters`: in the order of the optimizers.
        exit_code: the exit code of the script; None if it was killed.
        ranks: processes that took part.
        findings: each cause, then what follows from it.
        verdict: one of `FAULT`, `SOUND`, `LEARNING` and `UNKNOWN`, or `CRASHED`; `reason`: why there is none, what
            it does not cover, or what crashed.
        births: where non-finite values began, in the order of the steps.
        trials: with `try_fixes`, the runs of the script with one thing changed; `fix`: the change that makes it
            learn, None where none does; `tried`: what follows from the trials, or why there are none.
    """

    document: ClassVar[str] = "watch"
    steps: int
    recorded: int
    exit_code: int | None
    ranks: int
    near_zero: float
    layers: tuple[WatchedLayer, ...]
    parameters: tuple[WatchedParameter, ...]
    loss: tuple[ScalarSeries, ...]
    lr: tuple[ScalarSeries, ...]
    events: tuple[Event, ...]
    facts: TrainingFacts = TrainingFacts()
    findings: tuple[TrainingFinding, ...] = ()
    births: tuple[Birth, ...] = ()
    verdict: str = UNKNOWN
    reason: str | None = None
    trials: tuple[TrialRow, ...] = ()
    fix: Fix | None = None
    tried: str | None = None

    @property
    def came_to_nothing(self) -> bool:
        """Whether the script failed before it trained anything, so that there is nothing to report."""
        return bool(self.exit_code) and any(one.code == NEVER_TRAINED for one in self.run.warnings)

    @property
    def is_running(self) -> bool:
        """Whether it was made while the run was going on."""
        return any(one.code == RUNNING for one in self.run.warnings)
