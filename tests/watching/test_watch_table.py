"""Which rows and columns a person sees."""

import csv
import math
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch
from rules.trainings import criterion, loss, training
from torch import nn
from torch.nn import functional as F

import modelscope_cli as ms
from modelscope_cli import watch
from modelscope_cli.records.watch import SOUND, UNKNOWN
from modelscope_cli.report.fold import fold
from modelscope_cli.report.formats import FORMATS
from modelscope_cli.report.watch.table import run_facts, verdict_facts, watch_sheet
from modelscope_cli.rules.training import judge_training


def record_of(model, scale=1.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    with watch(model, optimizer) as watched:
        for _ in range(3):
            model(scale * torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    return watched.record()


def shown(record):
    sheet = watch_sheet(record)
    return [row.name for row in sheet.rows], {column.key for column in sheet.columns if column.is_shown}


def test_an_identity_that_repeats_the_row_before_is_counted_and_left_out():
    model = nn.Sequential(nn.Linear(6, 6), nn.Identity(), nn.Identity(), nn.ReLU(), nn.Identity())
    record = record_of(model)
    assert len(record.layers) == 5
    assert shown(record)[0] == ["0", "3"]
    assert ("left out", "3 Identity layers (--json has all)") in watch_sheet(record).facts
    first = nn.Sequential(nn.Identity(), nn.Linear(6, 6))  # it shows what enters
    assert shown(record_of(first))[0] == ["0", "1"]


def test_rates_of_all_groups_and_an_interruption_beside_a_finding_are_told():
    record = record_of(nn.Sequential(nn.Linear(6, 6), nn.ReLU()))
    rates = [replace(record.lr[0], group=n, value=(rate,) * 3) for n, rate in enumerate((0.1, 0.1, 1e-5))]
    record = replace(record, lr=tuple(rates), findings=("a finding",), exit_code=130)
    facts = dict(run_facts(record))
    assert facts["learning rate"] == "0.1000 (other groups: 1e-05)"
    assert facts["steps"].endswith(", then interrupted")


def test_dead_channels_and_saturation_have_columns_where_there_are_any():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    with torch.no_grad():
        model[0].bias[0] = 10
    healthy = shown(record_of(model, 0.1))[1]
    assert not healthy & {"saturated_last"}
    with torch.no_grad():
        model[0].bias[:] = torch.tensor([10.0, -100, 10, 10, 10, 10])
    assert "dead_last" in shown(record_of(model, 0.1))[1]
    with torch.no_grad():
        model[0].bias[:] = 10
    assert not shown(record_of(model, 0.1))[1] & {"dead_last", "saturated_last"}
    assert "saturated_last" in shown(record_of(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), 100.0))[1]


def spoilt_at(step, n=8, spoil=math.nan):
    """Return the record of a training whose first weights become NaN before a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, every=1) as watched:
        for at in range(n):
            if at == step:
                with torch.no_grad():
                    model[0].weight.fill_(spoil)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
            optimizer.step()
    return watched.record()


@pytest.mark.parametrize("step", [0, 1, 5, 7])
def test_values_at_the_end_of_a_layer_that_is_not_finite_are_nan_and_not_the_last_finite_ones(step, tmp_path):
    record = spoilt_at(step)
    assert {row.series.non_finite_since for row in record.layers} == {step}
    record.save(tmp_path / "r.json")
    for one in (record, ms.read(tmp_path / "r.json")):
        columns = {column.key: column for column in watch_sheet(one).columns}
        ends = [
            columns[key].cells(one.layers) for key in ("mean_last", "std_last", "zero_last", "near_zero_last")
        ]
        assert {cell for cells in ends for cell in cells} == {"nan"}
        assert columns["nan"].value(one.layers[0]) == 8 * 6  # in one step, not over all of them
        assert columns["non_finite_since"].cells(one.layers) == [f"since step {step}"] * 5
        assert columns["std_first"].value(one.layers[0]) == (
            None if step == 0 else one.layers[0].series.std[0]
        )
    assert fold(watch_sheet(record)) is not None


def test_a_layer_that_is_finite_again_is_told_by_its_counts():
    record = spoilt_at(99)
    assert {row.series.non_finite_since for row in record.layers} == {None}
    row = record.layers[0]
    series = replace(row.series, nan_count=(0, 5, 0, 0, 0, 0, 0, 0))
    keys = shown(replace(record, layers=(replace(row, series=series),)))[1]
    assert "nan" in keys
    assert not any("nan" in shown(one)[1] for one in (record, spoilt_at(3)))


@pytest.mark.parametrize("n", [3, 20, 300, 2000])
def test_the_losses_in_their_row_are_the_means_that_the_verdict_compares(n):
    values = tuple(2.3 - i / n + 0.1 * (-1) ** i for i in range(n))
    record = training(steps=n, loss=(loss(values),), lr=(loss((0.1,) * n),), criteria=())
    first, last = max(min(n // 10, 50), 3), max(min(n // 4, 50), 3)
    words = dict(watch_sheet(record).facts)["loss"]
    found = [float(word) for word in re.findall(r"[0-9.]+(?= over)", words)]
    assert found == pytest.approx([np.mean(values[:first]), np.mean(values[-last:])], rel=1e-3)
    spoilt = replace(record, loss=(loss((*values[:-1], math.nan)),))
    assert "not finite over the last" in dict(watch_sheet(spoilt).facts)["loss"]


@pytest.mark.parametrize("format", ["tsv", "csv"])
def test_machines_read_nan_and_since_when(format, tmp_path):
    rows = list(
        csv.DictReader(
            (FORMATS[format].render(watch_sheet(spoilt_at(2)))).splitlines(),
            delimiter="\t" if format == "tsv" else ",",
        )
    )
    assert all(math.isnan(float(row["std_last"])) for row in rows)
    assert {row["non_finite_since"] for row in rows} == {"2"}


@pytest.mark.parametrize(("rows", "late"), [(200, 1), (30, 4), (8, 12)])
def test_the_evaluation_in_its_row_is_the_one_that_the_verdict_is_about(rows, late):
    accuracies = [0.15 - 0.01 * (i % 3) for i in range(12)]
    losses = [3.0 + 0.1 * i for i in range(12)]
    none = dict.fromkeys(("commonest_prediction", "target_variance"), (None,) * 12)
    none |= dict.fromkeys(("is_probability", "is_positive"), (False,) * 12)
    series = {"step": range(12), "value": losses, "rows": (rows,) * 12, "accuracy": accuracies} | none
    evaluation = criterion(is_training=False, commonest_labels=(0.1,) * 12, **series)
    record = training(criteria=(criterion(accuracy=(0.3,) * 60), evaluation))
    reason = judge_training(record, record.facts).reason
    facts = dict(watch_sheet(replace(record, reason=reason)).facts)
    accuracy, cost = 100 * np.mean(accuracies[-late:]), np.mean(losses[-late:])
    assert f"the accuracy in evaluation is {accuracy:.1f} % on {late * rows:,} labels: " in reason
    assert f"the loss in evaluation is {cost:.4g}, above" in reason
    assert facts["evaluation"].endswith(f", {accuracy:.1f} % at the end")
    assert f"{cost:.4g}" in facts["evaluation"]


@pytest.mark.parametrize("times", [1.0, 50.0])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5])
def test_the_first_scores_are_too_large_where_equal_ones_cost_far_less(recorded, times, share):
    """Where positives are rare, equal scores cost far more than guessing; labels of one class cost nothing."""
    labels = (torch.rand(200, 1, generator=torch.Generator().manual_seed(0)) < share).float()

    def script():
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        for _ in range(20):
            loss = F.binary_cross_entropy_with_logits(times * net(torch.randn(200, 4)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    said = dict(run_facts(recorded(script)))["loss"]
    assert ("the initial logits are too large" in said) is (times > 1 and share > 0)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("a.py --lr 1", "modelscope watch --try-fixes a.py --lr 1   # "),
        (
            "--out=runs/a -m 'my train'",
            "modelscope watch --try-fixes --force --out=runs/a -m 'my train'   # ",
        ),
        ("", None),  # in Python
    ],
)
def test_what_cannot_be_told_says_what_to_run(typed, told):
    unclear = training(
        verdict=UNKNOWN, loss=(loss(tuple(2.3 + 0.5 * (i % 3) for i in range(60))),), criteria=()
    )
    argv = ("watch", *shlex.split(typed)) if typed else ()
    record = replace(unclear, run=replace(unclear.run, argv=argv))
    hints = [words for _, words in verdict_facts(record) if words.startswith("try: ")]
    assert [told in hint for hint in hints] == ([True] if told else [])
    for other in (replace(record, steps=5), replace(record, ranks=2), replace(record, verdict=SOUND)):
        assert not [words for _, words in verdict_facts(other) if "try-fixes" in words]
