"""Each rule of training fires on the course it is made for, first of all, and is quiet over healthy ones."""

import math
from dataclasses import replace
from typing import Any

import pytest
from trainings import (
    CLASSES,
    FALLING,
    FLAT,
    LAYERS,
    PARAMETERS,
    SINCE,
    N,
    certain,
    criterion,
    entering,
    event,
    from_step,
    layer,
    loss,
    model,
    parameter,
    stepping,
    training,
)

from modelscope_cli.commands.watch.table import watch_sheet
from modelscope_cli.records.check import ERROR, WARNING
from modelscope_cli.records.training_facts import (
    GRADIENT,
    LOSS,
    OUTPUT,
    Birth,
    Disagreement,
    RankFacts,
    ScheduleFacts,
    TimeFacts,
)
from modelscope_cli.records.watch import (
    BROADCAST,
    DROPPED,
    FAULT,
    LEAKS,
    REPEATS,
    SAME_DATA,
    SOUND,
    SUMMED,
    WRONG_SIGN,
    WatchedCriterion,
    WatchRecord,
)
from modelscope_cli.rules.training import RULES, judge_training
from modelscope_cli.rules.training.case import LASTING

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


def seconds(first: float = 0.0, **parts: float) -> TimeFacts:
    return TimeFacts(steps=N, passes=N, seconds=parts, first=first, workers=2, images=0)


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
        "Net",
        PARAMETERS[0].name,
        (0, 1),
        step,
        None,
        1e-3,
        0.1,
        "ranks 0 and 1 differ",
        "clip alike",
        "a.py:9",
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
# code: a training with this fault, since when it is said to be, where
SICK: dict[str, tuple[WatchRecord, int | None, str | None]] = {
    "MS701": (training(loss=(loss((*FALLING[:SINCE], *(math.nan,) * (N - SINCE))),)), SINCE, None),
    "MS702": (with_layer(False, nan_count=from_step(0, 3)), SINCE, "relu"),
    "MS703": (with_weight(False, grad_norm=from_step(0.1, math.inf)), SINCE, "fc.weight"),
    "MS704": (training(loss=(loss(from_step(1.0, 9.0)),), criteria=()), SINCE, None),
    "MS705": (with_layer(zero_fraction=from_step(0.5, 0.95)), SINCE, "relu"),
    "MS706": (with_layer(std=from_step(1.0, 200.0)), SINCE, "relu"),
    "MS707": (with_weight(grad_norm=from_step(0.1, 0.0)), SINCE, "fc.weight"),
    "MS708": (with_weight(grad_norm=from_step(0.1, 1e12)), SINCE, "fc.weight"),
    "MS709": (with_weight(update_ratio=from_step(1e-3, 0.3)), SINCE, "fc.weight"),
    "MS710": (with_weight(update_ratio=(1e-7,) * N), 0, "fc.weight"),
    "MS711": (
        training(
            steps=0,
            loss=(),
            lr=(),
            optimizers=(),
            idle=(("SGD", "a.py:5"),),
            parameters=(parameter(optimizer="", facts=certain(has_changed=False)),),
        ),
        0,
        None,
    ),
    "MS712": (with_facts(optimizer="", has_changed=False), 0, "fc.weight"),
    "MS713": (training(optimizers=(stepping(uncleared=16),)), 1, None),
    "MS714": (training(optimizers=(stepping(emptied=16),)), 1, None),
    "MS715": (with_facts(has_gradient=False, has_changed=False), 0, "fc.weight"),
    "MS716": (with_facts(has_gradient=False, has_run=False, has_changed=False), 0, "fc.weight"),
    "MS717": (
        training(
            failing=True,
            parameters=(
                parameter(optimizer="", facts=FROZEN),
                PARAMETERS[1],
                parameter("head.weight", (CLASSES, 16), optimizer="", facts=FROZEN),
            ),
        ),
        0,
        None,
    ),
    "MS718": (training(models=(model(evaluation_since=SINCE, frozen_modes=("Dropout",)),)), SINCE, None),
    "MS719": (training(failing=True, lr=(loss(from_step(0.1, 1e-3, SINCE - 2)),)), SINCE - 2, None),
    "MS720": (training(criteria=(criterion(is_probability=(True,) * N),)), 0, None),
    "MS721": (training(criteria=(criterion(made_by="relu"),)), 0, None),
    "MS722": (
        training(loss=(loss(tuple(-v for v in RISING_LOSS)),), criteria=(criterion(value=RISING_LOSS),)),
        0,
        None,
    ),
    "MS723": (
        training(
            loss=(loss(tuple(32 * value for value in FLAT)),),
            criteria=(criterion(is_summed=True, value=FLAT, accuracy=(0.1,) * N),),
        ),
        0,
        None,
    ),
    "MS724": (
        training(criteria=(criterion("mse_loss", classes=None, shapes=((32, 1), (32,))),)),
        0,
        None,
    ),
    "MS725": (
        training(criteria=(criterion(label_entropy=0.0, commonest_label=1.0, commonest_labels=(1.0,) * N),)),
        0,
        None,
    ),
    "MS726": (
        training(
            inputs=(
                entering(
                    "conv", "Conv2d", (16, 3, 8, 8), mean=(120.0,) * N, min=(0.0,) * N, max=(255.0,) * N
                ),
            )
        ),
        0,
        None,
    ),
    "MS727": (training(inputs=(entering(std=(0.0,) * N, min=(0.0,) * N, max=(0.0,) * N),)), 0, None),
    "MS728": (training(inputs=(entering(non_finite=from_step(0, 5)),)), SINCE, None),
    "MS729": (with_facts(was_alike=True, is_alike=True, start_rms=0.0), 0, "fc.weight"),
    "MS730": (with_layer(kind="Tanh", saturated_fraction=from_step(0.1, 0.9)), SINCE, "relu"),
    "MS731": (with_layer(dead_fraction=from_step(0.0, 0.6)), SINCE, "relu"),
    "MS732": (training(models=(model(norm_values=(1, 2)),)), 0, None),
    "MS733": (
        replace(
            with_weight(False, grad_norm=from_step(0.1, math.inf)),
            facts=training(models=(model(dtypes=("float16",)),)).facts,
        ),
        SINCE,
        None,
    ),
    "MS734": (training(events=(event("same-data", "every rank is given the same batches"),)), 0, None),
    "MS735": (training(failing=True), None, None),
    "MS736": (
        training(
            loss=(loss(FLAT),),
            criteria=(criterion(value=FLAT, accuracy=(0.1,) * N, commonest_prediction=(1.0,) * N),),
        ),
        N - N // 3,
        None,
    ),
    "MS737": (
        training(
            optimizers=(stepping(strangers=3),),
            parameters=(parameter(facts=certain(has_gradient=False, has_run=False)),),
        ),
        0,
        None,
    ),
    "MS738": (training(criteria=(criterion("nll_loss", value=tuple(v - 2 for v in FALLING)),)), 0, None),
    "MS739": (with_facts(True, start_rms=10.0), 0, "fc.weight"),
    "MS740": (sigmoids(), 0, "act0"),
    "MS741": (clipped(True, 1e-7), 0, None),
    "MS742": (training(criteria=(criterion(), criterion(is_training=False, accuracy=(0.1,) * N))), 0, None),
    "MS743": (training(models=(model(evaluated=(5, 0), loose_modes=("Dropout",)),)), 0, None),
    "MS744": (training(failing=True, optimizers=(stepping(weight_decay=2.0),)), 0, None),
    "MS745": (training(optimizers=(stepping(scaled=16),)), 1, None),
    "MS746": (apart(step=12), 12, "fc.weight"),
    "MS747": (with_weight(False, update_ratio=(0.0,) * N), 0, "fc.weight"),
    "MS748": (training(events=(event(REPEATS, "workers draw the same"),)), 0, None),
    "MS749": (with_weight(False, grad_norm=(0.0,) * N), 0, "fc.weight"),
    "MS755": (training(models=(model(outputs=(9, 9, 0.0, 0.0)),)), 0, None),
    "MS756": (
        training(steps=3 * N, criteria=(criterion("mse_loss", shared=(0.0,) * N, accuracy=(None,) * N),)),
        20,
        None,
    ),
    "MS757": (
        training(loss=(loss(VANISHING),), criteria=(), models=(model(outputs=(N, 0, 1.0, 0.1, 1.0, 1.0)),)),
        None,
        None,
    ),
    "MS761": (training(optimizers=(stepping(remade=20),)), 1, None),
    "MS762": (
        training(
            optimizers=(stepping(repeated=20),),
            inputs=(entering(mean=tuple(i / N for i in range(N))), entering("fc", "Linear")),
        ),
        None,
        None,
    ),
    "MS763": (training(models=(model(copies=(("Net#2", 3, 3, False),)),)), 0, None),
    "MS758": (training(schedules=(ScheduleFacts("OneCycleLR", "SGD", "a.py:6", N, 3, N),)), 0, None),
    "MS759": (training(events=(event(LEAKS, "Net: its output depends on what it must not"),)), 0, None),
    "MS760": (
        training(
            criteria=(criterion(), criterion(is_training=False, value=FLAT)),
            models=(model(validated=(9, 100.0, 50.0)),),
        ),
        None,
        None,
    ),
    "MS764": (training(failing=True, events=(event(DROPPED, "1 sets 95% of its input to 0"),)), 0, None),
    "MS771": (training(time=seconds(data=40.0, forward=60.0)), 1, None),
    "MS772": (training(time=seconds(validation=20.0, forward=5.0)), 1, None),
    "MS773": (training(time=seconds(first=20.0, forward=5.0)), 0, None),
}


@pytest.mark.parametrize("code", SICK)
def test_the_first_finding_is_the_fault_and_says_since_when_and_where(code: str) -> None:
    record, since, where = SICK[code]
    judgement = judged(record)
    first, *others = judgement.findings
    assert (first.code, first.since_step, first.layer) == (code, since, where)
    assert first.follows is None
    assert {one.code for one in others if one.follows is None} == set()
    assert judgement.verdict == FAULT
    assert first.message
    assert first.hint
    assert [ord(character) for character in first.message if ord(character) > 126] == []


def test_every_rule_has_a_course_and_codes_and_names_are_there_once() -> None:
    assert [rule.code for rule in RULES] == sorted(SICK)
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {rule.severity for rule in RULES} == {WARNING, ERROR}


def test_a_healthy_training_has_no_findings() -> None:
    judgement = judged(training())
    assert (judgement.findings, judgement.verdict, judgement.reason) == ((), SOUND, None)


# What looks like a fault and is none, in a training that learns.
HEALTHY: dict[str, WatchRecord] = {
    # What is certain, and is not so here.
    "a weight that goes back and forth between two norms": with_weight(
        False, weight_norm=(1.05, 1.06) * (N // 2)
    ),
    "a weight that no step of a rate of zero changes": replace(
        with_weight(False, update_ratio=(0.0,) * N), lr=(loss((0.0,) * (N - 9) + (0.1,) * 9),)
    ),
    "a weight whose steps are below the resolution": replace(
        with_weight(False, update_ratio=(0.0,) * N), lr=(loss((1e-9,) * N),)
    ),
    "a weight that is normalised after each step": with_weight(False, weight_norm=(4.0,) * N),
    "a zero gradient in the first steps": with_weight(False, grad_norm=from_step(0.0, 0.1)),
    "predictions that share little with their targets, and ever more": training(
        steps=3 * N,
        criteria=(criterion("mse_loss", shared=tuple(1e-4 * i for i in range(N)), accuracy=(None,) * N),),
    ),
    "validation of another contrast, as good as the training": training(
        criteria=(criterion(), criterion(is_training=False)), models=(model(validated=(9, 0.5, 0.5)),)
    ),
    "images of one sample a batch, never validated": training(models=(model(norm_values=(64, 1)),)),
    "much dropout where it learns": training(events=(event(DROPPED, "1 sets 95% of its input to 0"),)),
    "a schedule that wakes a group later": training(
        lr=(loss((0.1,) * N), replace(loss(from_step(0.0, 0.1)), group=1))
    ),
    "the same output in the first pass": training(models=(model(outputs=(9, 1, 0.0, 1.0)),)),
    "a schedule by epochs": training(
        schedules=(ScheduleFacts("CosineAnnealingLR", "SGD", "a.py:6", 3, 3, N),)
    ),
    "background nearly everywhere, as in detection": training(
        criteria=(
            criterion(
                commonest_label=0.99,
                commonest_labels=(0.99,) * N,
                accuracy=(0.99,) * N,
                rows=(999,) * N,
                label_entropy=0.2,
                commonest_prediction=(1.0,) * N,
                value=LOW,
            ),
        ),
        loss=(loss(LOW),),
    ),
    "a positive that is always the first of many": training(
        criteria=(
            criterion(commonest_label=1.0, commonest_labels=(1.0,) * N, label_entropy=0.0, made_by="cat"),
        )
    ),
    "language: the loss falls, and most predictions are wrong": training(
        criteria=(criterion(accuracy=(0.1,) * N, value=SLOW),), loss=(loss(SLOW),)
    ),
    "layers trained in turn": training(
        parameters=(
            *PARAMETERS,
            parameter("late.weight", facts=certain(has_gradient=False, has_changed=False)),
        )
    ),
    # What counts only while the loss fails.
    "ReLUs that are mostly zero": with_layer(False, zero_fraction=(0.98,) * N),
    "values that grow": with_layer(False, std=from_step(1.0, 200.0)),
    "almost no gradient": with_weight(False, grad_norm=from_step(0.1, 0.0)),
    "a large gradient": with_weight(False, grad_norm=from_step(0.1, 1e12)),
    "large updates": with_weight(False, update_ratio=from_step(1e-3, 0.3)),
    "small updates": with_weight(False, update_ratio=(1e-7,) * N),
    "channels that die late": with_layer(False, dead_fraction=from_step(0.0, 0.6)),
    "a saturated tanh": with_layer(False, kind="Tanh", saturated_fraction=(0.9,) * N),
    "a chain of sigmoids": sigmoids(failing=False),
    "a huge start": with_facts(False, start_rms=10.0),
    "a sum over the batch": training(criteria=(criterion(is_summed=True),)),
    "a rate that is gone after all is learnt": training(lr=(loss(from_step(0.1, 1e-5)),)),
    # What passes, or is meant.
    "one bad batch": training(loss=(loss((*FALLING[:SINCE], 5.0, *FALLING[SINCE + 1 :])),)),
    "one NaN gradient that a scaler skipped": training(events=(event("skipped", "a step was skipped", 3),)),
    "a frozen trunk under a head": training(
        parameters=(parameter(optimizer="", facts=FROZEN), *PARAMETERS[1:])
    ),
    "an idle optimizer beside one that steps": training(idle=(("Adam", "a.py:6"),)),
    "an optimizer that is made anew for each epoch": training(optimizers=(stepping(remade=1, stale=2),)),
    "the same gradients of the same batch": training(optimizers=(stepping(repeated=20),)),
    "a first version that is validated beside the model": training(
        models=(model(evaluated=(0, 3), copies=(("Net#2", 3, 3, False),)),)
    ),
    "a copy that gives targets": training(models=(model(copies=(("Net#2", 60, 0, False),)),)),
    "a rate that is zero for the last few steps": training(lr=(loss((*(0.1,) * (N - 6), *(0.0,) * 6)),)),
    "a scheme of accumulation": training(optimizers=(stepping(uncleared=2),)),
    "one batch whose gradients were clipped to nothing": training(optimizers=(stepping(emptied=1),)),
    "fine-tuning in evaluation mode, nothing that asks for it": training(
        models=(model(evaluation_since=0, frozen_modes=()),)
    ),
    "gradients that are clipped in every step, and steps that move the weights": clipped(False, 1e-3),
    "a strong weight decay": training(optimizers=(stepping(weight_decay=2.0),)),
    "validated in evaluation mode too": training(models=(model(evaluated=(5, 5), loose_modes=("Dropout",)),)),
    "validated in training mode, nothing that asks for it": training(models=(model(evaluated=(5, 0)),)),
    "validated as well as trained": training(criteria=(criterion(), criterion(is_training=False))),
    "an average of the model that lags behind it at first": training(
        criteria=(criterion(), criterion(is_training=False, accuracy=(0.1,) * N)),
        parameters=(*PARAMETERS, parameter(optimizer="", model="Average", facts=certain(has_gradient=False))),
    ),
    "a head on a model that stays in evaluation mode": fed_by_another(has_trained=False),
    "a step schedule of four phases": training(
        lr=(loss((*(0.1,) * 15, *(1e-2,) * 15, *(1e-3,) * 15, *(1e-4,) * 15)),)
    ),
    "targets within the range of the sigmoid": training(
        loss=(loss(LOW),), criteria=(numbers(value=LOW, made_by="sigmoid", target_variance=(0.2,) * N),)
    ),
    "evaluation in between": training(models=(model(steps_in_evaluation=3),)),
    "a zero-initialised head": with_facts(was_alike=True, is_alike=False, start_rms=0.0),
    "an unused output of another model": training(
        parameters=(
            *PARAMETERS,
            parameter("fc.weight", optimizer="", model="Teacher", facts=certain(has_changed=False)),
        )
    ),
    "label smoothing": training(
        criteria=(criterion(value=tuple(v + 0.5 for v in FALLING)),),
        loss=(loss(tuple(v + 0.5 for v in FALLING)),),
    ),
    "log-probabilities": training(criteria=(criterion("nll_loss", made_by="log_softmax"),)),
    "log-softmax before cross-entropy": training(criteria=(criterion(made_by="log_softmax"),)),
    "probabilities only in some steps": training(
        criteria=(criterion(is_probability=(True, False) * (N // 2)),)
    ),
    "a softmax that is only looked at": training(
        criteria=(criterion(), criterion(is_training=False, is_probability=(True,) * N, made_by="softmax"))
    ),
    "bytes that a norm takes in": training(
        inputs=(
            entering("bn", "BatchNorm2d", (16, 3, 8, 8), mean=(120.0,) * N, min=(0.0,) * N, max=(255.0,) * N),
        )
    ),
    "a raw scale that the model makes up for": training(
        inputs=(entering(mean=(120.0,) * N, max=(255.0,) * N), entering("fc", "Linear"))
    ),
    "what another model gives": training(inputs=(entering(std=(0.0,) * N, is_computed=True),)),
    "NaN that another model gives": training(
        inputs=(entering(non_finite=from_step(0, 5), is_computed=True),)
    ),
    "float16 with a scaler": training(
        models=(model(dtypes=("float16",)),), events=(event("skipped", "a step was skipped", 0),)
    ),
    "next to no label of another class": training(
        loss=(loss(tuple(1e-3 * value for value in FALLING)),),
        criteria=(
            criterion(
                value=tuple(1e-3 * value for value in FALLING),
                commonest_prediction=(1.0,) * N,
                commonest_label=0.9999,
                commonest_labels=(0.9999,) * N,
                label_entropy=1e-3,
            ),
        ),
    ),
    "all predictions are of the class that most labels are, and the loss is low": training(
        criteria=(criterion(commonest_prediction=(1.0,) * N),)
    ),
    "a sum that the script divides by itself": training(
        loss=(loss(FLAT),), criteria=(criterion(is_summed=True, value=FLAT),)
    ),
}


@pytest.mark.parametrize("what", HEALTHY)
def test_what_is_healthy_is_quiet(what: str) -> None:
    assert codes(HEALTHY[what]) == []


# In a training that fails: what is not a state yet, or not any more, or not of this kind.
PASSING: dict[str, WatchRecord] = {
    "too short to be a state": with_layer(zero_fraction=from_step(0.5, 0.95, N - LASTING + 1)),
    "it recovered": with_layer(zero_fraction=(*from_step(0.5, 0.95)[:-1], 0.5)),
    "the first step of Adam": with_weight(update_ratio=(0.5, *(1e-3,) * (N - 1))),
    "growth from a zero-initialised branch": with_layer(std=from_step(1e-4, 0.9)),
    "growth of what is as wide at the end as it should be": with_layer(std=from_step(0.1, 99.0)),
    "a bias of zero": training(
        failing=True, parameters=(*PARAMETERS, parameter("b", (16,), grad_norm=(0.0,) * N))
    ),
    "an activation that is no rectifier": with_layer(kind="Tanh", zero_fraction=(0.95,) * N),
    "the last layer may decide": training(
        failing=True, layers=(*LAYERS[:2], layer("out", "Sigmoid", 2, saturated_fraction=(0.9,) * N))
    ),
    "a cosine that ends at zero": training(
        failing=True, lr=(loss(tuple(0.05 * (1 + math.cos(math.pi * i / N)) for i in range(N))),)
    ),
    "sparse images, standardised": training(
        failing=True, inputs=(entering(min=(-0.5,) * N, max=(12.0,) * N),)
    ),
    "the usual weight decay beside a high learning rate": training(
        failing=True, lr=(loss((3.0,) * N),), optimizers=(stepping(weight_decay=0.1),)
    ),
    "steps that are small while the weights have a long way": with_weight(update_ratio=(5e-4,) * N),
    "sigmoids that pass their gradient on": sigmoids(factor=0.9),
    "two sigmoids": sigmoids(n=2),
}


@pytest.mark.parametrize("what", PASSING)
def test_what_passes_is_no_finding_of_its_own_even_while_the_loss_fails(what: str) -> None:
    assert codes(PASSING[what]) == ["MS735"]


# Where it began, said by the birth.
def test_a_birth_names_layer_and_step_where_no_record_holds_them() -> None:
    birth = Birth(OUTPUT, 33, "Net", "relu", 0)
    spoilt = training(loss=(loss((*FALLING[:33], *(math.nan,) * (N - 33))),), births=(birth,))
    first, *others = judged(spoilt).findings
    assert (first.code, first.layer, first.since_step) == ("MS702", "relu", 33)
    assert "relu is not finite" in first.message
    assert [one.follows for one in others] == ["MS702"] * len(others)


@pytest.mark.parametrize(("what", "code"), [(LOSS, "MS701"), (GRADIENT, "MS703"), (OUTPUT, "MS702")])
def test_what_is_not_finite_is_named_by_where_it_began(what: str, code: str) -> None:
    name = "fc.weight" if what == GRADIENT else "relu"
    birth = Birth(what, SINCE, "Net", name if what != LOSS else "", 0)
    spoilt = training(
        loss=(loss((*FALLING[:SINCE], *(math.nan,) * (N - SINCE))),),
        births=(birth,),
        layers=(LAYERS[0], layer(nan_count=from_step(0, 9, SINCE + 1)), LAYERS[2]),
        parameters=(parameter(grad_norm=from_step(0.1, math.nan)), *PARAMETERS[1:]),
    )
    assert codes(spoilt)[0] == code


@pytest.mark.parametrize(
    ("kind", "code"), [(SUMMED, "MS723"), (BROADCAST, "MS724"), (WRONG_SIGN, "MS722"), (SAME_DATA, "MS734")]
)
def test_what_the_graph_of_a_hand_made_loss_showed_is_told(kind: str, code: str) -> None:
    found = judged(
        training(failing=True, criteria=(), events=(event(kind, "the loss is odd (a.py:9)"),))
    ).findings
    assert (found[0].code, found[0].message) == (code, "the loss is odd (a.py:9)")


def test_the_sum_of_a_training_that_learns_is_no_fault() -> None:
    assert codes(training(criteria=(), events=(event(SUMMED, "the loss is a sum"),))) == []


def test_a_loss_that_was_divided_once_too_often_is_told_while_it_does_not_learn() -> None:
    small = tuple(0.01 * value for value in FLAT)
    seen = criterion(value=FLAT, accuracy=(0.1,) * N)
    found = judged(training(loss=(loss(small),), criteria=(seen,))).findings
    assert found[0].code == "MS723"
    assert "divided twice" in found[0].message
    assert codes(training(loss=(loss(tuple(0.01 * value for value in FALLING)),))) == []


def test_targets_that_are_all_the_same_number() -> None:
    found = judged(training(criteria=(numbers(target_variance=(0.0,) * N),))).findings[0]
    assert (found.code, "targets of mse_loss" in found.message) == ("MS725", True)


def test_targets_that_vary_more_than_the_activation_before_them_can() -> None:
    for kind, variance in (("sigmoid", 0.3), ("tanh", 1.1)):
        seen = numbers(made_by=kind, target_variance=(variance,) * N)
        (found,) = judged(training(criteria=(seen,))).findings
        assert (found.code, found.place) == ("MS721", "a.py:9")
        assert "out of range" in found.message


def test_weights_that_happen_to_guess_well_have_not_learnt_by_steps_that_do_not_move_them() -> None:
    seen = criterion(value=FLAT, accuracy=(0.3,) * N)
    weights = tuple(replace(one, series=replace(one.series, update_ratio=(1e-7,) * N)) for one in PARAMETERS)
    found = judged(training(loss=(loss(FLAT),), criteria=(seen,), parameters=weights)).findings
    assert found[0].code == "MS710"


def test_steps_that_do_not_add_up_are_small_while_the_training_fails() -> None:
    assert codes(with_weight(update_ratio=(1e-4,) * N))[0] == "MS710"
    assert codes(with_weight(False, update_ratio=(1e-4,) * N)) == []


def test_steps_that_killed_what_follows_are_counted_until_then() -> None:
    weight = {"update_ratio": from_step(0.3, 1e-3, 10), "grad_norm": from_step(0.1, 0.0, 10)}
    assert codes(with_weight(**weight))[0] == "MS709"


def test_a_warm_up_that_lasts_is_named_once_the_training_fails() -> None:
    rising = loss(tuple(1e-6 * i for i in range(N)))
    weights = tuple(
        replace(one, series=replace(one.series, update_ratio=tuple(1e-7 * i for i in range(N))))
        for one in PARAMETERS
    )
    assert codes(training(failing=True, lr=(rising,), parameters=weights))[0] == "MS710"


def test_what_hardly_varies_does_not_hide_what_is_certain() -> None:
    flat = entering(std=(0.01,) * N, min=(0.0,) * N, max=(0.05,) * N)
    found = judged(training(failing=True, inputs=(flat,), optimizers=(stepping(emptied=16),))).findings
    assert [one.code for one in found if one.follows is None] == ["MS714"]
    assert codes(training(failing=True, inputs=(flat,)))[0] == "MS727"


def test_a_model_that_feeds_the_one_that_is_trained_is_not_meant_to_stay() -> None:
    (found,) = judged(fed_by_another()).findings
    assert (found.code, found.layer) == ("MS712", "Body/body.weight")


def test_an_optimizer_of_a_model_beside_the_one_that_is_trained_is_an_error() -> None:
    beside = parameter("a.weight", model="Other", facts=certain(has_gradient=False, has_changed=False))
    trained = parameter(optimizer="", facts=certain(has_changed=False))
    found = judged(training(parameters=(beside, trained))).findings
    assert [(one.code, one.severity) for one in found if one.follows is None][:1] == [("MS712", ERROR)]


def test_a_line_of_the_script_is_named_where_it_is_known() -> None:
    assert judged(SICK["MS713"][0]).findings[0].place == "a.py:5"
    assert judged(SICK["MS720"][0]).findings[0].place == "a.py:9"
    assert judged(SICK["MS718"][0]).findings[0].place == "a.py:8"


def test_an_entirely_dead_layer_is_an_error_also_where_the_loss_falls() -> None:
    assert codes(with_layer(False, zero_fraction=from_step(0.5, 0.9999))) == []
    (found,) = judged(with_layer(False, zero_fraction=from_step(0.5, 1.0))).findings
    assert (found.code, found.severity) == ("MS705", ERROR)


def test_a_loss_that_ends_above_its_start_is_an_error() -> None:
    assert judged(SICK["MS704"][0]).findings[0].severity == ERROR


def test_gradients_of_a_head_that_was_replaced_are_an_error_with_the_line_of_the_optimizer() -> None:
    replaced = training(
        optimizers=(stepping(strangers=1),),
        parameters=(
            *PARAMETERS[:2],
            parameter("head.weight", (10, 16), optimizer="", facts=certain(has_changed=False)),
        ),
    )
    (found,) = judged(replaced).findings
    assert (found.code, found.severity, found.place) == ("MS712", ERROR, "a.py:5")
    assert "replaced after the optimizer was made" in found.message


def test_a_finding_is_beside_its_layer_also_where_another_model_was_never_seen_to_run() -> None:
    sick = with_layer(zero_fraction=(0.95,) * N)
    stranger = replace(PARAMETERS[0], model="Adam", name="group0.0", facts=None)
    sick = replace(sick, parameters=(*sick.parameters, stranger))
    sick = replace(sick, findings=judged(sick).findings)
    assert sick.findings[0].layer == "Net/relu"
    sheet = watch_sheet(sick)
    wanted = [column for column in sheet.columns if column.key in ("name", "findings")]
    cells = [([column.value(row) for column in wanted], sheet.is_bad(row)) for row in sheet.rows]
    assert cells == [
        (["Net/fc", ""], False),
        (["Net/relu", "MS705@0"], True),
        (["Net/head", ""], False),
    ]
