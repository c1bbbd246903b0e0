"""Records of trainings that never ran: a healthy one, and what is to be changed in it to make it sick."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from modelscope_cli.records.run import ModelInfo, Run, WeightsInfo
from modelscope_cli.records.training_facts import Disagreement, OptimizerFacts, RankFacts
from modelscope_cli.records.watch import (
    CriterionSeries,
    Event,
    InputSeries,
    LayerSeries,
    ModelFacts,
    ParameterFacts,
    ParameterSeries,
    ScalarSeries,
    TrainingFacts,
    WatchedCriterion,
    WatchedInput,
    WatchedLayer,
    WatchedParameter,
    WatchRecord,
)
from modelscope_cli.rules.training import judge_training

N = 60
SINCE = 30
CLASSES = 10
FALLING = tuple(0.2 + 2.1 * 0.93**i for i in range(N))
FLAT = (2.3,) * N
_RUN = Run(
    command="watch",
    argv=(),
    model=ModelInfo("script", "a.py", "Net", WeightsInfo("script", "in training", "the script's own")),
    input=None,
    device="cpu",
    dtype="float32",
    seed=0,
    versions={},
)


def from_step(before: Any, after: Any, since: int = SINCE, n: int = N) -> tuple[Any, ...]:
    return (before,) * since + (after,) * (n - since)


def layer(
    name: str = "relu", kind: str = "ReLU", order: int = 1, model: str = "Net", **series: Any
) -> WatchedLayer:
    """Return a layer whose output is as it should be, but for what is named."""
    n = len(next(iter(series.values()))) if series else N
    usual = {
        "step": tuple(range(n)),
        "mean": (0.0,) * n,
        "std": (1.0,) * n,
        "zero_fraction": (0.5,) * n,
        "near_zero_fraction": (0.5,) * n,
        "nan_count": (0,) * n,
        "inf_count": (0,) * n,
        "grad_norm": (0.1,) * n,
    }
    return WatchedLayer(model, name, kind, order, 0, LayerSeries(**{**usual, **series}))


def certain(**changes: Any) -> ParameterFacts:
    """Return what is certain of a parameter that is trained as it should be."""
    facts = ParameterFacts(
        requires_grad=True,
        has_gradient=True,
        has_run=True,
        is_severed=False,
        has_changed=True,
        start_rms=0.2,
        was_alike=False,
        is_alike=False,
    )
    return replace(facts, **changes)


def parameter(
    name: str = "fc.weight",
    shape: tuple[int, ...] = (16, 16),
    optimizer: str = "SGD",
    model: str = "Net",
    facts: ParameterFacts | None = None,
    **series: Any,
) -> WatchedParameter:
    """Return a parameter that is trained as it should be, but for what is named."""
    n = N if optimizer else 0
    usual = {
        "step": tuple(range(n)),
        "grad_norm": (0.1,) * n,
        "weight_norm": (1.0,) * n,
        "update_ratio": (1e-3,) * n,
    }
    return WatchedParameter(
        model, name, optimizer, shape, ParameterSeries(**{**usual, **series}), facts or certain()
    )


def entering(
    name: str = "input", kind: str = "", shape: tuple[int, ...] = (16, 16), **changes: Any
) -> WatchedInput:
    """Return a tensor with mean 0 and standard deviation 1 that enters `Net`, but for what is named."""
    usual = {
        "step": tuple(range(N)),
        "mean": (0.0,) * N,
        "std": (1.0,) * N,
        "min": (-3.0,) * N,
        "max": (3.0,) * N,
        "non_finite": (0,) * N,
        "batch": (16,) * N,
        "is_alike": (False,) * N,
    }
    is_computed = changes.pop("is_computed", False)
    return WatchedInput("Net", name, kind, shape, "float32", is_computed, InputSeries(**{**usual, **changes}))


def criterion(name: str = "cross_entropy", is_training: bool = True, **changes: Any) -> WatchedCriterion:
    """Return a loss over evenly spread labels of which ever more are predicted, but for what is named.

    Args:
        commonest_label: the share over the whole run; that of single batches is `commonest_labels`.
    """
    about = {
        "place": "a.py:9",
        "classes": CLASSES,
        "made_by": None,
        "shapes": None,
        "is_summed": False,
        "is_weighted": False,
        "label_entropy": math.log(CLASSES),
        "commonest_label": 1 / CLASSES,
    }
    of_batches = changes.pop("commonest_labels", (0.2,) * N)
    for key in set(about) & set(changes):
        about[key] = changes.pop(key)
    usual = {
        "step": tuple(range(N)),
        "value": FALLING,
        "rows": (128,) * N,
        "accuracy": tuple(min(0.1 + i / N, 1.0) for i in range(N)),
        "commonest_label": of_batches,
        "commonest_prediction": (0.3,) * N,
        "target_variance": (None,) * N,
        "is_probability": (False,) * N,
        "is_positive": (False,) * N,
    }
    return WatchedCriterion(
        name, is_training=is_training, **about, series=CriterionSeries(**{**usual, **changes})
    )


def stepping(optimizer: str = "SGD", **changes: Any) -> OptimizerFacts:
    """Return what is certain of an optimizer that is used as it should be."""
    facts = OptimizerFacts(
        optimizer, made="a.py:5", cycles=16, uncleared=0, emptied=0, held=3, strangers=0, maximizes=False
    )
    return replace(facts, **changes)


def model(name: str = "Net", **changes: Any) -> ModelFacts:
    """Return how a model was trained that was always in training mode."""
    facts = ModelFacts(
        name,
        called="a.py:8",
        steps_in_training=N,
        steps_in_evaluation=0,
        evaluation_since=None,
        frozen_modes=(),
        norm_values=(512, 32),
        dtypes=("float32",),
    )
    return replace(facts, **changes)


LAYERS = layer("fc", "Linear", 0), layer("relu", "ReLU", 1), layer("head", "Linear", 2)
PARAMETERS = (
    parameter(),
    parameter("fc.bias", (16,), facts=certain(was_alike=None, is_alike=None)),
    parameter("head.weight", (CLASSES, 16)),
)
FACTS = TrainingFacts(
    inputs=(entering(), entering("fc", "Linear")),
    criteria=(criterion(),),
    optimizers=(stepping(),),
    models=(model(),),
    backwards=N,
)


def loss(values: Sequence[float | None] = FALLING, optimizer: str = "SGD") -> ScalarSeries:
    return ScalarSeries(optimizer, tuple(range(len(values))), tuple(values))


def training(*, failing: bool = False, **changes: Any) -> WatchRecord:
    """Return a healthy training, but for what is named: fields of the record and of its facts.

    Args:
        failing: whether the loss stays where it was, and the predictions at chance.
    """
    usual: dict[str, Any] = {
        "steps": N,
        "layers": LAYERS,
        "parameters": PARAMETERS,
        "loss": (loss(),),
        "lr": (loss((0.1,) * N),),
        "events": (),
        "births": (),
    }
    facts = FACTS
    if failing:
        usual["loss"] = (loss(FLAT),)
        facts = replace(facts, criteria=(criterion(value=FLAT, accuracy=(0.1,) * N),))
    facts = replace(facts, **{key: changes.pop(key) for key in FACTS.__slots__ if key in changes})
    return WatchRecord(
        **{**usual, **changes}, run=_RUN, recorded=N, exit_code=0, ranks=1, near_zero=0.05, facts=facts
    )


def event(kind: str, message: str, step: int = 0) -> Event:
    return Event(step, kind, message)


SLOW = tuple(2.3 - 0.6 * i / N for i in range(N))
VANISHING = tuple(0.5 * 0.1 ** (2 * i / N) for i in range(N))
LOW = tuple(0.1 * value for value in FALLING)
RISING_LOSS = (2.3, 2.0, 1.5, *tuple(0.2 * 1.06**i for i in range(N - 3)))


def judged(record: WatchRecord):
    return judge_training(record, record.facts)


def codes(record: WatchRecord) -> list[str]:
    return [finding.code for finding in judged(record).findings]


def with_layer(failing: bool = True, name: str = "relu", kind: str = "ReLU", **series: Any) -> WatchRecord:
    return training(failing=failing, layers=(LAYERS[0], layer(name, kind, 1, **series), LAYERS[2]))


def with_weight(failing: bool = True, **series: Any) -> WatchRecord:
    return training(failing=failing, parameters=(parameter(**series), *PARAMETERS[1:]))


def with_facts(failing: bool = False, optimizer: str = "SGD", **facts: Any) -> WatchRecord:
    norms = {} if facts.get("has_gradient", True) or not optimizer else {"grad_norm": (None,) * N}
    first = parameter(optimizer=optimizer, facts=certain(**facts), **norms)
    return training(failing=failing, parameters=(first, *PARAMETERS[1:]))


def numbers(**changes: Any) -> WatchedCriterion:
    """Return a squared error that is healthy, but for what is named."""
    usual = {"classes": None, "accuracy": (None,) * N, "label_entropy": None, "commonest_label": None}
    return criterion("mse_loss", **{**usual, **changes})


def apart(step: int) -> WatchRecord:
    """Return a healthy training of two ranks whose weights differ since a step."""
    found = Disagreement(
        "Net", PARAMETERS[0].name, (0, 1), step, None, 1e-3, "ranks 0 and 1 differ", "clip alike", "a.py:9"
    )
    record = training()
    return replace(record, facts=replace(record.facts, ranks=RankFacts(2, 0, 0, disagreement=found)))


def sigmoids(failing: bool = True, factor: float = 0.1, n: int = 4) -> WatchRecord:
    """A chain of sigmoids, with a gradient that each of them makes so many times larger."""
    chain = [layer(f"act{i}", "Sigmoid", i, grad_norm=(0.1 * factor ** (n - i),) * N) for i in range(n)]
    return training(failing=failing, layers=(*chain, layer("head", "Linear", n)))


def clipped(failing: bool, update: float) -> WatchRecord:
    """Two weights whose gradients have one norm together in every step, each of them another one."""
    one, other = ((0.6, 0.8) * (N // 2), (0.8, 0.6) * (N // 2))
    weights = (
        parameter(grad_norm=one, update_ratio=(update,) * N),
        parameter("head.weight", (CLASSES, 16), grad_norm=other, update_ratio=(update,) * N),
    )
    return training(failing=failing, parameters=weights)


def fed_by_another(**about: Any) -> WatchRecord:
    """A head that is trained, and a model of its own before it that nobody holds."""
    left = parameter("body.weight", optimizer="", model="Body", facts=certain(has_changed=False))
    return training(
        parameters=(*PARAMETERS, left),
        models=(model(), model("Body", steps_in_training=0, **about)),
        inputs=(entering(is_computed=True), entering("fc", "Linear", is_computed=True)),
    )


FROZEN = certain(requires_grad=False, has_gradient=False, has_changed=False)
