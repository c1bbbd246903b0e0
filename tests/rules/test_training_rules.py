"""Each rule of training fires on the course it is made for, first of all, and is quiet over healthy ones."""

import math
from dataclasses import replace

import pytest
from trainings import (
    CLASSES,
    FALLING,
    FLAT,
    FROZEN,
    LAYERS,
    PARAMETERS,
    RISING_LOSS,
    SINCE,
    VANISHING,
    N,
    apart,
    certain,
    clipped,
    codes,
    criterion,
    entering,
    event,
    fed_by_another,
    from_step,
    judged,
    layer,
    loss,
    model,
    parameter,
    sigmoids,
    stepping,
    training,
    with_facts,
    with_layer,
    with_weight,
)

from modelscope_cli.records.findings import ERROR
from modelscope_cli.records.training_facts import GRADIENT, LOSS, OUTPUT, Birth, ScheduleFacts, TimeFacts
from modelscope_cli.records.watch import (
    BROADCAST,
    DROPPED,
    FAULT,
    LAYOUT,
    LEAKS,
    SAME_DATA,
    SOUND,
    SUMMED,
    UNLOADED,
    WRONG_SIGN,
    WatchRecord,
)
from modelscope_cli.rules.training import judge_training


def seconds(**parts: float) -> TimeFacts:
    return TimeFacts(steps=N, passes=N, seconds=parts, workers=2)


# code: a training with this fault, since when it is said to be, where
# Frozen as torch's default draws it, with a standard deviation of 1 / sqrt(3 fan-in)
AS_DRAWN = {
    "requires_grad": False,
    "has_gradient": False,
    "has_changed": False,
    "start_rms": 1 / math.sqrt(3 * 16),
}

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
    "MS724": (training(criteria=(criterion("mse_loss", classes=None, shapes=((32, 1), (32,))),)), 0, None),
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
    "MS742": (
        training(criteria=(criterion(accuracy=(0.99,) * N), criterion(is_training=False, accuracy=(0.1,) * N))),
        0,
        None,
    ),
    "MS743": (training(models=(model(evaluated=(5, 0), loose_modes=("Dropout",)),)), 0, None),
    "MS744": (training(failing=True, optimizers=(stepping(weight_decay=2.0),)), 0, None),
    "MS745": (training(optimizers=(stepping(scaled=16),)), 1, None),
    "MS746": (apart(step=12), 12, "fc.weight"),
    "MS747": (with_weight(False, update_ratio=(0.0,) * N), 0, "fc.weight"),
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
    "MS778": (
        training(
            loss=(loss(from_step(1.4, 1e-5)), replace(loss(from_step(0.7, 12.0)), optimizer="Adam")),
            criteria=(),
            parameters=(parameter(), replace(parameter(), model="G", optimizer="Adam")),
            models=(model(is_fed=True), model(model="G", is_fed=False)),
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
    "MS764": (training(failing=True, events=(event(DROPPED, "1 sets 95 % of its input to 0"),)), 0, None),
    "MS765": (training(events=(event(UNLOADED, "load_state_dict loaded nothing into Net"),)), 0, None),
    "MS766": (
        training(optimizers=(stepping(unusual=(("momentum", (1.0,), (0.0,)),)),)),
        0,
        None,
    ),
    "MS767": (training(events=(event(LAYOUT, "neighbouring pixels differ 3 times as much"),)), 0, None),
    "MS768": (
        training(
            failing=True,
            parameters=(
                parameter("fc.weight", optimizer="", facts=certain(**AS_DRAWN)),
                parameter("head.weight", (CLASSES, 16)),
            ),
        ),
        0,
        None,
    ),
    "MS769": (
        training(steps=16, loss=(loss(FALLING[:16]),), lr=(loss((0.1,) * 16),), backwards=320),
        0,
        None,
    ),
    "MS771": (training(time=seconds(data=40.0, forward=60.0)), 1, None),
}  # fmt: skip


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


def test_a_healthy_training_has_no_findings() -> None:
    judgement = judged(training(criteria=(criterion(), criterion(is_training=False))))
    assert (judgement.findings, judgement.verdict) == ((), SOUND)
    assert judgement.reason == "it learns: the loss fell from 1.97 to 0.251"


@pytest.mark.parametrize(
    ("end", "guessing", "fires"),
    [(0.0, 0.0, True), (0.33, 0.165, True), (0.33, 0.0, False), (1.2, 0.165, False)],
)
def test_a_generator_with_the_labels_of_the_discriminator(end: float, guessing: float, fires: bool) -> None:
    """0.165 is half of the entropy of labels that are smoothed to 0.9; the other half of the labels are 0."""
    none = {"classes": 2, "accuracy": (None,) * N, "label_entropy": None, "commonest_label": None}
    both = [
        criterion(
            "binary_cross_entropy", place=f"a.py:{line}", value=from_step(0.69, value), **none, guessing=least
        )
        for line, value, least in ((1, end / 2, (guessing,) * N), (2, 1e-4, (0.0,) * N))
    ]
    record = training(
        loss=(loss(from_step(1.4, end)), replace(loss(from_step(0.7, 1e-4)), optimizer="Adam")),
        criteria=tuple(both),
        parameters=(parameter(), replace(parameter(), model="G", optimizer="Adam")),
        models=(model(is_fed=True), model(model="G", is_fed=False)),
    )
    assert ("MS722" in {one.code for one in judge_training(record, record.facts).findings}) == fires


# Where it began, said by the birth.
def test_the_origin_of_a_nan_is_named_also_where_no_record_holds_it() -> None:
    birth = Birth(OUTPUT, 33, "Net", "relu", 0)
    spoilt = training(loss=(loss((*FALLING[:33], *(math.nan,) * (N - 33))),), births=(birth,))
    first, *others = judged(spoilt).findings
    assert (first.code, first.layer, first.since_step) == ("MS702", "relu", 33)
    assert first.message.startswith("the first NaN or infinite values appear here at step 33")
    assert [one.follows for one in others] == ["MS702"] * len(others)


def test_the_step_is_not_blamed_where_hardly_any_gradient_arrives() -> None:
    def said(grad_norm: float) -> str:
        still = with_weight(update_ratio=(0.0,) * N, grad_norm=(grad_norm,) * N)
        return next(one.message for one in judged(still).findings if one.code == "MS710")

    assert said(0.1).startswith("no step changes it")
    assert "almost no gradient reaches it" in said(1e-14)


def test_a_rate_that_is_not_finite_is_named_before_the_loss_that_follows() -> None:
    broken = loss((*FALLING[:SINCE], *(math.nan,) * (N - SINCE)))
    record = training(loss=(broken,), lr=(loss((*(0.1,) * SINCE, *(math.nan,) * (N - SINCE))),))
    (found,) = [one for one in judge_training(record, record.facts).findings if one.code == "MS701"]
    assert f"the learning rate is not finite at step {SINCE}" in found.message
    assert found.hint.startswith("check lr")


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
def test_findings_from_the_graph_of_a_hand_made_loss(kind: str, code: str) -> None:
    found = judged(
        training(failing=True, criteria=(), events=(event(kind, "the loss is odd (a.py:9)"),))
    ).findings
    assert (found[0].code, found[0].message, found[0].place) == (code, "the loss is odd", "a.py:9")


@pytest.mark.parametrize("name", ["nll_loss", "ctc_loss"])
def test_a_loss_without_limit_follows_from_scores_where_logarithms_are_due(name: str) -> None:
    falling = tuple(-(1.5**i) for i in range(N))
    record = training(loss=(loss(falling),), criteria=(criterion(name, value=falling),))
    found = {one.code: one.follows for one in judged(record).findings}
    assert next(iter(found)) == "MS738"
    assert (found["MS738"], found["MS722"]) == (None, "MS738")
    bare = training(loss=(loss(falling),), criteria=())
    assert next((one.code, one.follows) for one in judged(bare).findings) == ("MS722", None)
    # The logarithm of a probability plus 1e-6
    rounded = tuple(value - FALLING[-1] - 1e-6 for value in FALLING)
    assert "MS738" not in codes(training(criteria=(criterion(name, value=rounded),)))


def test_the_sum_of_a_training_that_learns_is_not_a_fault() -> None:
    assert codes(training(criteria=(), events=(event(SUMMED, "the loss is a sum"),))) == []


def test_a_loss_divided_once_too_often_is_reported_while_it_does_not_fall() -> None:
    small = tuple(0.01 * value for value in FLAT)
    seen = criterion(value=FLAT, accuracy=(0.1,) * N)
    found = judged(training(loss=(loss(small),), criteria=(seen,))).findings
    assert found[0].code == "MS723"
    assert "divided twice" in found[0].message
    assert codes(training(loss=(loss(tuple(0.01 * value for value in FALLING)),))) == []


@pytest.mark.parametrize("shrunk", [16, 0])
def test_gradients_that_are_clipped_before_they_are_unscaled(shrunk: int) -> None:
    facts = replace(training().facts, optimizers=(stepping(cycles=16, shrunk=shrunk),))
    found = judge_training(clipped(False, 1e-3), facts).findings
    assert [one.code for one in found] == (["MS741"] if shrunk else [])
    assert all("before the gradient scaler unscales them" in one.message for one in found)


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


@pytest.mark.parametrize(("last", "is_told"), [(1e-3, False), (1e-6, False), (1e-8, True)])
def test_a_rate_that_is_nothing_is_told_also_where_the_loss_fell(last: float, is_told: bool) -> None:
    found = codes(training(lr=(loss(from_step(0.1, last, SINCE - 2)),)))
    assert ("MS719" in found) == is_told


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


def test_an_entirely_dead_layer_is_an_error_also_where_the_loss_falls() -> None:
    assert codes(with_layer(False, zero_fraction=from_step(0.5, 0.9999))) == []
    (found,) = judged(with_layer(False, zero_fraction=from_step(0.5, 1.0))).findings
    assert (found.code, found.severity) == ("MS705", ERROR)
    assert found.hint.startswith("lower the learning rate")
    (at_first,) = judged(with_layer(False, zero_fraction=from_step(1.0, 1.0))).findings
    assert at_first.hint.startswith("set the biases before it to 0")  # no step has changed anything yet


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
    (first, second), head = PARAMETERS[:2], replaced.parameters[-1]
    body = [replace(one, facts=certain(requires_grad=False)) for one in (first, second)]
    (found,) = judged(replace(replaced, parameters=(*body, head))).findings
    assert found.message.endswith("; its other parameters have requires_grad=False")
    assert found.hint.startswith("pass the optimizer [p for p in model.parameters() if p.requires_grad]")


ZERO_SINCE = from_step(0.0, 1.0)


def with_rows(*rows, n=30):
    """Return a training too short to judge, with these layers."""
    return training(steps=n, loss=(loss((2.3,) * n),), layers=rows)


@pytest.mark.parametrize(("rows", "named"), [
    ((layer("conv", "Conv2d", 1, zero_fraction=ZERO_SINCE),), ("conv", SINCE, "error")),
    (
        (
            layer("conv", "Conv2d", 1, zero_fraction=ZERO_SINCE),
            layer("relu", "ReLU", 2, zero_fraction=from_step(0.5, 1.0, SINCE + 5)),
        ),
        ("relu", SINCE + 5, "error"),
    ),
    ((layer("conv", "Conv2d", 1, zero_fraction=from_step(0.0, 0.99999)),), None),
    ((layer("zero", "Conv2d", 1, zero_fraction=(1.0,) * N),), None),  # as the last layer of a branch begins
    ((layer("add", "add", 1, zero_fraction=ZERO_SINCE),), None),
    ((layer("conv", "Conv2d", 1, zero_fraction=from_step(0.0, 1.0, N - 3)),), None),
])  # fmt: skip
def test_an_output_that_is_all_zero_is_certain_however_short_the_run(rows, named):
    found = judge_training(with_rows(*rows)).findings
    assert [(one.layer, one.since_step, one.severity) for one in found if one.code == "MS705"] == (
        [named] if named else []
    )


@pytest.mark.parametrize(("name", "is_state"), [("rnn.weight_hh_l0", True), ("rnn.weight_ih_l0", False)])
def test_a_recurrent_weight_without_a_gradient_is_about_the_state(name, is_state):
    record = training(parameters=(parameter(name, grad_norm=(0.0,) * N), *PARAMETERS[1:]))
    (found,) = [one for one in judged(record).findings if one.code == "MS749"]
    assert ("state" in found.hint) == is_state
