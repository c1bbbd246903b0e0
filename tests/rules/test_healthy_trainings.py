"""What looks like a fault in a training and is none: no rule speaks."""

import math
from dataclasses import replace

import pytest
from trainings import (
    FALLING,
    FLAT,
    FROZEN,
    LAYERS,
    LOW,
    PARAMETERS,
    SINCE,
    SLOW,
    N,
    certain,
    clipped,
    codes,
    criterion,
    entering,
    event,
    fed_by_another,
    from_step,
    layer,
    loss,
    model,
    numbers,
    parameter,
    sigmoids,
    stepping,
    training,
    with_facts,
    with_layer,
    with_weight,
)

from modelscope_cli.records.training_facts import ScheduleFacts
from modelscope_cli.records.watch import DROPPED, WatchRecord
from modelscope_cli.rules.training.rule_types import LASTING

CONTRASTIVE = tuple(4.13 - 0.7 * i / N for i in range(N))

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
    "validation of another contrast, as good as the training": training(
        criteria=(criterion(), criterion(is_training=False)), models=(model(validated=(9, 0.5, 0.5)),)
    ),
    "images of one sample a batch, never validated": training(models=(model(norm_values=(64, 1)),)),
    "much dropout where it learns": training(events=(event(DROPPED, "1 sets 95 % of its input to 0"),)),
    "a schedule that wakes a group later": training(
        lr=(loss((0.1,) * N), replace(loss(from_step(0.0, 0.1)), group=1))
    ),
    "the same output in the first pass": training(models=(model(outputs=(9, 1, 0.0, 1.0)),)),
    "a schedule by epochs": training(schedules=(ScheduleFacts("CosineAnnealingLR", "SGD", "a.py:6", 3, 3, N),)),
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
    "a positive among the others of the batch": training(
        criteria=(
            criterion(
                **{"classes": 63, "made_by": "cat", "label_entropy": math.log(32), "commonest_label": 1 / 32},
                **{"commonest_labels": (1 / 32,) * N, "accuracy": (0.05,) * N, "value": CONTRASTIVE},
            ),
        ),
        loss=(loss(CONTRASTIVE),),
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
    "a zero-initialised head": with_facts(was_alike=True, is_alike=False, start_rms=0.0),
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
    "NaN that another model gives": training(inputs=(entering(non_finite=from_step(0, 5), is_computed=True),)),
    "float16 with a scaler": training(
        models=(model(dtypes=("float16",)),), events=(event("skipped", "a step was skipped", 0),)
    ),
    "all predictions are of the class that most labels are, and the loss is low": training(
        criteria=(criterion(commonest_prediction=(1.0,) * N),)
    ),
    "a sum that the script divides by itself": training(
        loss=(loss(FLAT),), criteria=(criterion(is_summed=True, value=FLAT),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HEALTHY)
def test_a_healthy_training_that_looks_faulty_has_no_finding(what: str) -> None:
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
def test_what_passes_is_not_a_finding_of_its_own_even_while_the_loss_fails(what: str) -> None:
    assert codes(PASSING[what]) == ["MS735"]
