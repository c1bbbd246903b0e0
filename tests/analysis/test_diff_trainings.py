"""`diff` of two results of `watch`: which is better, where the losses part, and what they were run with."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms


def trained(
    folder, name, *, seed=0, rate=0.05, batch=16, frozen=False, kind=torch.optim.SGD, steps=60, decay=0.0
):
    torch.manual_seed(7)
    data, labels = torch.randn(160, 6), torch.arange(160) % 2
    data[:, 0] += 3 * labels
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].weight.requires_grad_(not frozen)
    optimizer = kind([one for one in net.parameters() if one.requires_grad], rate, weight_decay=decay)
    criterion = nn.CrossEntropyLoss()
    with ms.watch(net, out=folder / name, force=True) as watched:
        for _ in range(steps):
            rows = torch.randint(0, 100, (batch,))
            optimizer.zero_grad()
            criterion(net(data[rows]), labels[rows]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            criterion(net(data[100:]), labels[100:])
    return watched.record()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("base"), "base")


@pytest.mark.parametrize(("change", "settings"), [
    ({"rate": 0.001}, {"learning rate"}),
    ({"batch": 4}, {"batch", "first batch"}),
    ({"seed": 1}, {"initial weights", "first batch"}),
    ({"kind": torch.optim.RMSprop}, {"optimizer"}),
    ({"frozen": True}, {"frozen"}),
    ({"decay": 0.1}, {"weight decay"}),
    ({"steps": 40}, {"steps"}),
    ({}, set()),
])  # fmt: skip
def test_what_differs_is_named_and_what_does_not_is_not(base, tmp_path, change, settings):
    record = ms.diff(base, trained(tmp_path, "other", **change))
    assert {one.name for one in record.settings} - {"loss", "evaluation", "verdict"} == settings
    better, losses = record.causes
    assert better.kind == "outcome"
    same, other_start = settings <= {"steps"}, settings & {"batch", "initial weights"}
    began = "the losses are equal" if same else f"the losses differ from step {0 if other_start else 1} on"
    assert losses.message.startswith(began)


def test_the_better_one_is_named_only_beyond_chance(base, tmp_path):
    poor, twin = trained(tmp_path, "poor", rate=1e-6), trained(tmp_path, "twin", seed=3)
    better = {name: ms.diff(base, one).causes[0].message for name, one in (("poor", poor), ("twin", twin))}
    assert better["poor"].startswith("A is better: accuracy ")
    assert better["twin"].startswith("neither")
    assert ms.diff(poor, base).causes[0].message.startswith("B is better: accuracy ")
    lost = trained(tmp_path, "lost", rate=1e30)
    assert ms.diff(base, lost).causes[0].message == "A is better: the loss of B is no longer finite"
