"""Each condition of a rule of training: with it the rule speaks, without it it does not."""

import math
from dataclasses import replace

import pytest
from trainings import (
    FALLING,
    FLAT,
    LAYERS,
    PARAMETERS,
    VANISHING,
    N,
    certain,
    codes,
    criterion,
    entering,
    event,
    from_step,
    judged,
    layer,
    loss,
    model,
    numbers,
    parameter,
    stepping,
    training,
    with_layer,
)

from modelscope_cli.records.training_facts import ScheduleFacts
from modelscope_cli.records.watch import CUT, NEGATED, UNRELATED

TWO = loss(), loss(FLAT, "Adam")
GOING_ON = tuple(1.0 - 0.5 * i / N for i in range(N))
GONE_OUT = (*(1.0 - 0.05 * i for i in range(10)), *(0.5,) * (N - 10))
ALL_ALIKE = {"commonest_label": 1.0, "commonest_labels": (1.0,) * N, "label_entropy": 0.0}


def blocks(pure: int, rows: int, mixed: int = 1, commonest_label: float = 0.4):
    """Return a training of which so many batches in turn are of one class, and then of several."""
    shares = ((1.0,) * pure + (0.6,) * mixed) * N
    sorted_by_class = criterion(
        rows=(rows,) * N, commonest_labels=shares[:N], commonest_label=commonest_label
    )
    return training(criteria=(sorted_by_class,), inputs=(entering(shape=(rows, 3, 8, 8)),))


EQUAL = numbers(target_variance=(0.0,) * N)
# Frozen as torch's default draws it, with a standard deviation of 1 / sqrt(3 fan-in)
AS_DRAWN = {
    "requires_grad": False,
    "has_gradient": False,
    "has_changed": False,
    "start_rms": 1 / math.sqrt(3 * 16),
}
STILL = tuple(parameter(name, update_ratio=(1e-7,) * N) for name in ("fc.weight", "head.weight"))
RARE = {"commonest_label": 0.95, "commonest_labels": (0.95,) * N, "label_entropy": 0.2, "rows": (999,) * N}


def collapsing(values=VANISHING, outputs=(N, 0, 1.0, 0.1, 1.0, 1.0), **changes):
    """A model whose outputs become one point while the loss vanishes, but for what is named."""
    usual = {"loss": (loss(values),), "criteria": (), "models": (model(outputs=outputs),)}
    return training(**{**usual, **changes})


def ending_at(share, start=0.5):
    return tuple(start * share ** (i / (N - 1)) for i in range(N))


def unrelated(
    values=FALLING, steps=3 * N, is_training=True, shared=(0.0,) * N, parameters=PARAMETERS, **changes
):
    one = criterion("mse_loss", is_training, shared=shared, accuracy=(None,) * N, value=values, **changes)
    return training(loss=(loss(values),), steps=steps, criteria=(one,), parameters=parameters)


def guessing(values=FLAT, rows=128, **changes):
    """A training at chance, of batches of so many labels."""
    seen = criterion(value=values, accuracy=(0.1,) * N, rows=(rows,) * N)
    return training(loss=(loss(values),), criteria=(seen,), **changes)


def always_absent(values, **changes):
    """Labels of which 95% are one class, and predictions of nothing else."""
    seen = {**RARE, "value": values, "accuracy": (0.95,) * N, "commonest_prediction": (1.0,) * N}
    return training(loss=(loss(values),), criteria=(criterion(**{**seen, **changes}),))


def penalised(values, penalty):
    """A criterion beside a penalty, in a training of at least 150 steps."""
    seen = criterion(value=values, accuracy=(0.1,) * N)
    return training(
        loss=(loss(tuple(value + penalty for value in values)),), criteria=(seen,), steps=200, failing=True
    )


def bytes_into(*behind):
    """A convolution that is given bytes, and what follows it."""
    kind = {"mean": (120.0,) * N, "min": (0.0,) * N, "max": (255.0,) * N}
    given = entering("conv", "Conv2d", (16, 3, 8, 8), **kind)
    return training(inputs=(given,), layers=(layer("conv", "Conv2d", 0), *behind, LAYERS[2]))


def large_input(std=(90.0,) * N, is_computed=False):
    """A training that fails, of a linear layer with such an input."""
    inputs = [entering(name, kind, (16, 8), std=std) for name, kind in (("input", ""), ("fc", "Linear"))]
    inputs[0] = replace(inputs[0], is_computed=is_computed)
    return guessing(inputs=tuple(inputs))


def overwritten(ratio=30.0, losses=(2.3, 4.1, 3.9, 4.0, 3.5), others=30.0):
    """Weights that the first step replaces, after which the loss is higher for some steps."""
    rest = (1e-3,) * (N - 1)
    weights = (parameter(update_ratio=(ratio, *rest)), parameter("head.weight", update_ratio=(others, *rest)))
    return training(loss=(loss((*losses, *FALLING[5:])),), parameters=weights)


def matched(soft=True, losses=(*(2.0 + i for i in range(20)), *(22.0,) * (N - 20)), grown=0.02):
    """A detector: probabilities that it computes from its own predictions, in a loss of several parts."""
    costs = tuple(0.001 + (grown - 0.001) * i / N for i in range(N))
    values = tuple(0.001 * (i % 7 + 1) for i in range(N))
    accuracy = (None,) * N if soft else (0.5,) * N
    seen = criterion(
        "binary_cross_entropy_with_logits", classes=2, value=values, accuracy=accuracy, guessing=costs
    )
    return training(loss=(loss(losses),), criteria=(seen,))


def clipped_but(n_still, n=10):
    """Weights that are clipped together in a training that fails, some of which do not move."""
    one, other = ((0.6, 0.8) * (N // 2), (0.8, 0.6) * (N // 2))
    pairs = [(one, other)[i % 2] for i in range(n)]
    weights = [
        parameter(f"fc{i}.weight", grad_norm=norms, update_ratio=(1e-7 if i < n_still else 1e-3,) * N)
        for i, norms in enumerate(pairs)
    ]
    return training(failing=True, parameters=tuple(weights))


def assigned(norm):
    """A weight whose gradient no backward pass computed."""
    first = parameter(grad_norm=(norm,) * N, facts=certain(has_gradient=False))
    return training(parameters=(first, *PARAMETERS[1:]))


def subtracted(values, kind=NEGATED):
    return training(criteria=(criterion(value=values),), events=(event(kind, "a criterion is subtracted"),))


def of_masks(values):
    seen = criterion("binary_cross_entropy_with_logits", classes=2, value=values)
    return training(loss=(loss(values),), criteria=(seen,))


def scheduled(name="CosineAnnealingLR", total=4, used=N, failing=True, evaluations=0):
    """A schedule of a training that is evaluated some times, each in two batches."""
    schedules = (ScheduleFacts(name, "SGD", "a.py:6", total, used, N),)
    if not evaluations:
        return training(failing=failing, schedules=schedules)
    at = tuple(10 * (i // 2) for i in range(2 * evaluations)) + (10 * evaluations - 10,) * (
        N - 2 * evaluations
    )
    judged = criterion(is_training=False, step=at)
    return training(failing=failing, schedules=schedules, criteria=(criterion(), judged))


# code: what it takes, and what of that is missing


def half_frozen(held=("body.0", "body.1"), trained=("head",), failing=False, **facts):
    """A model whose head is trained on layers that are frozen as they were drawn."""
    frozen = [parameter(f"{name}.weight", optimizer="", facts=certain(**AS_DRAWN | facts)) for name in held]
    return training(
        failing=failing, parameters=(*frozen, *(parameter(f"{name}.weight", (10, 4096)) for name in trained))
    )


SPEAKS = {
    "MS768": {
        "learns nevertheless": half_frozen(),
        "learns nothing": half_frozen(failing=True),
        "most layers, few of the values": half_frozen(
            held=("body.0", "body.1", "body.2"), trained=("a", "b")
        ),
        "two of four layers, as torch draws them": half_frozen(
            ("body.0", "body.1"), ("a", "b"), start_max=0.248
        ),
    },
    "MS757": {
        "points": collapsing(),
        "directions": collapsing(outputs=(N, 0, 1.0, 1.0, 1.0, 0.1)),
        "minus a cosine": collapsing(tuple(2 * value - 1 for value in VANISHING)),
        "labels that are positions of positives": collapsing(criteria=(criterion(),)),
        "targets of another view": collapsing(criteria=(numbers(),)),
    },
    "MS731": {
        "it fails": with_layer(dead_fraction=from_step(0.0, 0.6)),
        "since the first step": with_layer(False, dead_fraction=(0.6,) * N, zero_fraction=(0.8,) * N),
        "nearly all since the first quarter": with_layer(
            False, dead_fraction=(*(0.0,) * 12, *(0.95,) * (N - 12))
        ),
    },
    "MS756": {
        "nothing shared": unrelated(),
        "rare, and no longer falling": unrelated(FLAT, commonest_label=0.95),
    },
    "MS725": {
        "one class": training(criteria=(criterion(**ALL_ALIKE),)),
        "one number": training(criteria=(EQUAL,)),
        "sorted": training(criteria=(criterion(commonest_labels=(1.0,) * N),)),
        "sorted in blocks of some batches": blocks(3, 24),
        "two classes in blocks": blocks(2, 16, commonest_label=0.6),
        "small batches in blocks": blocks(2, 8, commonest_label=0.5),
    },
    "MS735": {
        "many labels": guessing(),
        "images as targets": matched(losses=tuple(2.3 + 0.9 * (i / N) for i in range(N)), grown=0.001),
        "labels of a loss of several parts": matched(False, tuple(2.3 + 0.9 * (i / N) for i in range(N))),
        "few labels, and a loss that rises": guessing(tuple(2.3 + 1.6 * i / N for i in range(N)), rows=16),
        "few labels, and a cause": guessing(rows=16, optimizers=(stepping(emptied=16),)),
        "one rare class": always_absent(GOING_ON),
        "rare labels of many, no longer falling": always_absent(GONE_OUT, shared=(0.1,) * N),
    },
    "MS736": {
        "one class": always_absent(GOING_ON),
        "one class of five, all others of weight 0": always_absent(
            VANISHING, is_weighted=True, commonest_label=0.2, commonest_labels=(0.2,) * N, accuracy=(0.2,) * N
        ),
    },
    "MS723": {"a penalty above all": penalised(FLAT, 300.0)},
    "MS726": {
        "no norm": bytes_into(),
        "another layer between": bytes_into(LAYERS[1], layer("bn", "BatchNorm2d")),
        "a training that fails": large_input(),
    },
    "MS741": {"no weight moves": clipped_but(10)},
    "MS709": {"the first step replaces all": overwritten()},
    "MS749": {"assigned by the script": assigned(0.0)},
    "MS722": {
        "a part grows without limit": subtracted(tuple(2.3 + i for i in range(N))),
        "masks of 0 and 255": of_masks(tuple(0.7 - 0.1 * i for i in range(N))),
    },
    "MS758": {
        "a short cosine at every step": scheduled(),
        "of the length of the epochs, in one that learns": scheduled(failing=False, evaluations=4),
    },
}
QUIET = {
    "MS757": {
        "labels of classes": collapsing(criteria=(criterion("nll_loss"),)),
        "targets that are data": collapsing(criteria=(numbers(target_variance=(1.0,) * N),)),
        "several losses": collapsing(loss=(loss(VANISHING), loss(VANISHING, "Adam"))),
        "too short": collapsing(steps=49),
        "few records": collapsing(outputs=(9, 0, 1.0, 0.1, 1.0, 1.0)),
        "alike in every pass": collapsing(outputs=(N, N, 1.0, 0.1, 1.0, 1.0)),
        "a loss without a floor": collapsing((*VANISHING[:-20], -0.01, *VANISHING[-19:])),
        "a third is left": collapsing(ending_at(0.02), (N, 0, 1.0, 0.3, 1.0, 1.0)),
        "the loss has not vanished": collapsing(ending_at(0.07), (N, 0, 1.0, 0.19, 1.0, 1.0)),
        "the loss falls by more": collapsing(ending_at(1e-4), (N, 0, 1.0, 0.19, 1.0, 1.0)),
        "the loss falls by less": collapsing(outputs=(N, 0, 1.0, 0.02, 1.0, 1.0)),
    },
    "MS731": {
        "since halfway": with_layer(False, dead_fraction=from_step(0.0, 0.95)),
        "fewer since the first quarter": with_layer(False, dead_fraction=(*(0.0,) * 12, *(0.8,) * (N - 12))),
        "similar inputs": with_layer(False, dead_fraction=(0.6,) * N, zero_fraction=(0.62,) * N),
        "dead as a whole": with_layer(dead_fraction=(1.0,) * N),
        "no rectifier": with_layer(kind="Tanh", dead_fraction=(0.6,) * N),
        "few records": with_layer(dead_fraction=(0.6,) * 4),
        "too short to fail": replace(with_layer(dead_fraction=from_step(0.0, 0.6)), loss=(loss(FLAT[:45]),)),
    },
    "MS756": {
        "weights that do not move": unrelated(FLAT, parameters=STILL),
        "validation": unrelated(is_training=False),
        "few records": unrelated(shared=(*(0.0,) * 12, *(None,) * (N - 12))),
        "too short": unrelated(steps=149),
        "rare labels first": unrelated(commonest_label=0.95),
        "something in between": unrelated(shared=(*(0.0,) * 20, *(0.05,) * 20, *(0.0,) * 20)),
        "something at the end": unrelated(shared=(*(0.0,) * 40, *(0.05,) * 20)),
    },
    "MS725": {
        "adversaries": training(loss=TWO, criteria=(EQUAL,)),
        "most of one class, and small batches": blocks(1, 8, commonest_label=0.85),
        "patches of one class": training(criteria=(criterion(commonest_labels=(1.0, 1.0, 0.6) * (N // 3)),)),
        "rarely of one class": blocks(1, 16, commonest_label=0.6, mixed=2),
        "one part of several": training(criteria=(EQUAL, criterion())),
        "few labels": training(criteria=(numbers(target_variance=(0.0,) * N, rows=from_step(0, 1, N - 20)),)),
        "a class that is not learnt": training(
            loss=(loss(FLAT),), criteria=(criterion(value=FLAT, **ALL_ALIKE),)
        ),
        "a sum that is to be zero": training(criteria=(numbers(target_variance=(0.0,) * N, made_by="sum"),)),
        "unknown in part": training(criteria=(numbers(target_variance=from_step(0.0, None)),)),
        "equal in part": training(criteria=(numbers(target_variance=from_step(0.0, 1.0)),)),
        "sorted, few rows": training(criteria=(criterion(commonest_labels=(1.0,) * N, rows=(4,) * N),)),
        "sorted in part": training(criteria=(criterion(commonest_labels=from_step(1.0, 0.2)),)),
        "sorted, adversaries": training(loss=TWO, criteria=(criterion(commonest_labels=(1.0,) * N),)),
    },
    "MS735": {
        "few labels": guessing(rows=16),
        "targets of its own": matched(),
        "few steps": training(steps=45, loss=(loss(FLAT[:45]),), criteria=()),
        "rare labels of many, still falling": always_absent(GOING_ON, shared=(0.1,) * N),
        "a class of 85%, still falling": always_absent(GOING_ON, commonest_label=0.85, accuracy=(0.85,) * N),
    },
    "MS723": {
        "a penalty, and the criterion falls": penalised(FALLING, 300.0),
        "a small penalty": penalised(FLAT, 0.3),
    },
    "MS736": {
        "NaN at the end": always_absent(GOING_ON, accuracy=(*(0.0,) * (N - 3), None, None, None)),
        "too short": replace(always_absent(GOING_ON), steps=49),
        "rare labels of many, still falling": always_absent(GOING_ON, shared=(0.1,) * N),
    },
    "MS726": {
        "a norm behind it": bytes_into(layer("bn", "BatchNorm2d")),
        "computed by another model": large_input(is_computed=True),
        "grows during the training": large_input(std=from_step(1.0, 90.0)),
    },
    "MS709": {
        "some of it": overwritten(ratio=0.5),
        "by little": overwritten(ratio=3.0, others=4.0),
        "one of two weights": overwritten(others=0.1),
        "from zero": overwritten(ratio=math.inf),
        "the loss falls at once": overwritten(losses=(2.3, 2.2, 2.0, 1.9, 1.8)),
        "the loss was unknown": overwritten(losses=(2.3, None, 4.0, 4.0, 3.5)),
    },
    "MS741": {"most weights move": clipped_but(2)},
    "MS704": {"targets of its own": matched()},
    "MS749": {"assigned by the script, not zero": assigned(0.1), "never assigned": assigned(None)},
    "MS722": {
        "a rising criterion beside another loss that is negative": training(
            loss=(loss(tuple(-0.99 - 0.01 * i / N for i in range(N))),),
            criteria=(criterion(value=tuple(min(1.8 + i, 3.4) for i in range(N))),),
        ),
        "masks of 0 and 1": of_masks(tuple(0.7 * 0.9**i for i in range(N))),
        "a part at chance": subtracted((2.3,) * N),
        "a part that rises to chance": subtracted(tuple(0.5 + 1.8 * i / N for i in range(N))),
        "a part that falls": subtracted(FALLING),
        "not subtracted": subtracted(tuple(2.3 + i for i in range(N)), "other"),
    },
    "MS758": {
        "up and down once": scheduled(total=30),
        "not at every step": scheduled(used=N // 2),
        "another schedule": scheduled("OneCycleLR"),
        "learns nevertheless": scheduled(failing=False),
        "learns, in other epochs": scheduled(failing=False, evaluations=5),
        "of the whole run, which was stopped": training(
            schedules=(ScheduleFacts("OneCycleLR", "SGD", "a.py:6", N, 3, N),),
            events=(event(CUT, "stopped after 60 steps, as requested"),),
        ),
    },
    "MS768": {
        "loaded": half_frozen(was_loaded=True),
        "loaded, and learns nothing": half_frozen(failing=True, was_loaded=True),
        "two of four layers, of another distribution": half_frozen(
            ("body.0", "body.1"), ("a", "b"), start_max=0.3
        ),
        "a stem": half_frozen(held=("stem",), trained=("a", "b")),
        "what another part is trained to predict": training(
            models=(model(makes_targets=True),), parameters=half_frozen().parameters
        ),
        "of another size than drawn": half_frozen(start_rms=0.9),
        "too short to have learnt": training(
            steps=8,
            loss=(loss(FALLING[:8]),),
            parameters=(
                parameter("fc.weight", optimizer="", facts=certain(**AS_DRAWN)),
                parameter("head.weight", (10, 16)),
            ),
        ),
    },
    "MS732": {
        "images one by one, too short": training(
            steps=8, loss=(loss(FALLING[:8]),), models=(model(norm_values=(576, 1)),)
        )
    },
}


def cases(table):
    return [
        pytest.param(code, one, id=f"{code} {what}") for code in table for what, one in table[code].items()
    ]


@pytest.mark.parametrize(("code", "record"), cases(SPEAKS))
def test_a_rule_fires_where_all_its_conditions_hold(code, record) -> None:
    assert code in codes(record)


@pytest.mark.parametrize(("code", "record"), cases(QUIET))
def test_a_rule_is_quiet_where_one_condition_is_missing(code, record) -> None:
    assert code not in codes(record)


def test_a_layer_is_named_before_what_the_outputs_show_from_the_same_step() -> None:
    dead = with_layer(True, zero_fraction=(1.0,) * N)
    found = judged(replace(dead, steps=3 * N, events=(event(UNRELATED, "no higher when shuffled"),))).findings
    assert [(one.code, one.follows) for one in found[:2]] == [("MS705", None), ("MS756", "MS705")]
