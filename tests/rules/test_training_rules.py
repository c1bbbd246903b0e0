"""Each rule of training fires on the course it is made for, and on no healthy one."""

import math
from dataclasses import replace

import pytest

from modelscope_cli.commands.watch.table import watch_sheet
from modelscope_cli.records.run import ModelInfo, Run, WeightsInfo
from modelscope_cli.records.watch import (
    LayerSeries,
    Magnitudes,
    ParameterSeries,
    ScalarSeries,
    WatchedLayer,
    WatchedParameter,
    WatchRecord,
)
from modelscope_cli.rules.training import RULES, judge_training

N = 20


def record(*, std=(1.0,) * N, zero=(0.5,) * N, nan=(0,) * N, grad=(0.1,) * N, ratio=(1e-3,) * N, loss=None):
    steps = tuple(range(N))
    layer = LayerSeries(steps, (0.0,) * N, std, zero, zero, nan, (0,) * N, (0.1,) * N, Magnitudes((), ()))
    weight = ParameterSeries(steps, grad, (1.0,) * N, ratio)
    bias = ParameterSeries(steps, (0.0,) * N, (0.0,) * N, (None,) * N)
    run = Run(
        "watch",
        (),
        ModelInfo("script", "a.py", "Net", WeightsInfo("", "", "")),
        None,
        "cpu",
        "float32",
        0,
        {},
    )
    return WatchRecord(
        run=run,
        steps=N,
        recorded=N,
        exit_code=0,
        ranks=1,
        near_zero=0.05,
        layers=(WatchedLayer("Net", "relu", "ReLU", 0, 0, layer),),
        parameters=(
            WatchedParameter("Net", "w", "SGD", (2, 2), weight),
            WatchedParameter("Net", "b", "SGD", (2,), bias),
        ),
        loss=(ScalarSeries("SGD", steps, loss or tuple(2.0 - 0.05 * i for i in steps)),),
        lr=(),
        step_ms=(),
        events=(),
    )


def from_step(step, before, after):
    return (before,) * step + (after,) * (N - step)


# code: (what is wrong from step 12 on, since when it is said to be)
COURSES = {
    "MS701": ({"loss": from_step(12, 1.0, math.nan)}, 12),
    "MS702": ({"nan": from_step(12, 0, 3)}, 12),
    "MS703": ({"grad": from_step(12, 0.1, math.inf)}, 12),
    "MS704": ({"loss": from_step(12, 1.0, 9.0)}, 12),
    "MS705": ({"zero": from_step(12, 0.5, 0.95)}, 12),
    "MS706": ({"std": from_step(12, 1.0, 200.0)}, 12),
    "MS707": ({"grad": from_step(12, 0.1, 0.0)}, 12),
    "MS708": ({"grad": from_step(12, 0.1, 1e5)}, 12),
    "MS709": ({"ratio": from_step(12, 1e-3, 0.3)}, 12),
    "MS710": ({"ratio": (1e-7,) * N}, 0),
}


@pytest.mark.parametrize("code", COURSES)
def test_fires_since_the_step(code):
    wrong, since = COURSES[code]
    found = {finding.code: finding for finding in judge_training(record(**wrong))}
    assert found[code].since_step == since
    assert set(found) == {code}
    assert found[code].hint


def test_every_rule_has_a_course():
    assert [rule.code for rule in RULES] == list(COURSES)


def test_a_healthy_course_has_no_findings():
    assert judge_training(record()) == ()


@pytest.mark.parametrize(
    "passing",
    [
        {"zero": from_step(18, 0.5, 0.95)},  # too short to be a state
        {"zero": (*from_step(12, 0.5, 0.95)[:-1], 0.5)},  # it recovered
        {"ratio": (0.5, *(1e-3,) * (N - 1))},  # the first step of Adam
        {"ratio": from_step(12, 1e-3, 1e-7)},  # the end of a schedule
        {"loss": (1.0,) * 10 + (5.0,) + (1.0,) * 9},  # one bad batch
        {"loss": (2.0,) * 15 + (3.9,) * 5},  # not twice what it was
    ],
)
def test_what_passes_is_no_finding(passing):
    assert judge_training(record(**passing)) == ()


def test_a_finding_is_beside_its_layer_also_where_another_model_was_never_seen_to_run():
    sick = record(zero=(0.95,) * N)
    stranger = replace(sick.parameters[0], model="Adam", name="group0.0")
    sick = replace(sick, parameters=(*sick.parameters, stranger))
    sick = replace(sick, findings=judge_training(sick))
    assert [finding.layer for finding in sick.findings] == ["Net/relu"]
    sheet = watch_sheet(sick, "name,findings")
    (row,) = sheet.rows
    assert [column.value(row) for column in sheet.columns] == ["Net/relu", "MS705@0"]
    assert sheet.is_bad(row)
