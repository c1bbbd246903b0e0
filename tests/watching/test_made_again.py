"""A model that is made again in a loop is one model, and the run says so."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

EPOCHS, STEPS = 4, 15


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.layers(x)


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def train(model, optimizer):
    for _ in range(STEPS):
        x = torch.randn(16, 6)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def epochs(make, kept=None):
    for _ in range(EPOCHS):
        model = make()
        train(model, torch.optim.Adam(model.parameters(), 1e-3))
        if kept is not None:
            kept.append(model)


def told(record):
    return [one.message for one in record.run.warnings if one.code == "made-again"]


@pytest.mark.parametrize(("make", "name"), [(Net, "Net"), (plain, "Sequential")])
@pytest.mark.parametrize("is_kept", [False, True])
def test_instances_made_at_one_line_are_one_model(recorded, make, name, is_kept):
    record = recorded(lambda: epochs(make, [] if is_kept else None))
    (message,) = told(record)
    assert message.startswith(f"{name} is made again {EPOCHS - 1} times (test_made_again.py:")
    line = make.__code__ if make is plain else epochs.__code__
    number = int(message.partition("py:")[2].partition(")")[0])
    assert line.co_firstlineno < number <= line.co_firstlineno + 2
    assert {row.model for row in record.layers} == {name}
    assert {one.model for one in record.facts.models} == {name}
    assert [series.optimizer for series in record.loss] == ["Adam"]
    assert record.steps == len(record.loss[0].step) == EPOCHS * STEPS
    assert not {"MS712", "MS715", "MS716", "MS737", "MS747"} & {one.code for one in record.findings}


def side_by_side():
    models = [Net() for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in models]
    for _ in range(EPOCHS):
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer)


def of_several_widths():
    for width in (4, 8):
        model = Net(width)
        train(model, torch.optim.Adam(model.parameters(), 1e-3))


def one_after_the_other():
    for model in (Net(), Net()):
        train(model, torch.optim.Adam(model.parameters(), 1e-3))


@pytest.mark.parametrize("script", [side_by_side, of_several_widths, one_after_the_other])
def test_models_that_only_look_alike_stay_apart(recorded, script):
    record = recorded(script)
    assert told(record) == []
    assert {row.model for row in record.layers} == {"Net", "Net#2"}
