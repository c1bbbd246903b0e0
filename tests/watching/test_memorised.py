"""What is good in training and no better than a constant in validation was memorised, or is numbered otherwise."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def net(n_out):
    return nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, n_out))


def run(n_out, loss, targets, held_out, steps=300, n=64):
    torch.manual_seed(0)
    weight, x, other = torch.randn(8, n_out), torch.randn(n, 8), torch.randn(200, 8)
    model = net(n_out)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    y, y_other = targets(x @ weight), held_out(other @ weight)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        if step % 50 == 49:
            with torch.no_grad():
                loss(model(other), y_other)


def same(x):
    return x


def shuffled(x):
    return x[torch.randperm(len(x))]


@pytest.mark.parametrize(
    ("kind", "targets", "is_found"),
    [(nn.MSELoss, same, False), (nn.L1Loss, shuffled, True), (nn.SmoothL1Loss, shuffled, True)],
)
def test_numbers(recorded, kind, targets, is_found):
    record = recorded(lambda: run(2, kind(), targets, same))
    found = [one for one in record.findings if one.code == "MS742"]
    assert bool(found) == is_found
    assert all("where the best constant output gives" in one.message for one in found)


def best(x):
    return x.argmax(1)


@pytest.mark.parametrize(
    ("targets", "held_out", "said"),
    [
        (best, best, None),
        (lambda x: shuffled(best(x)), best, "memorised, not learnt"),
        (lambda x: (best(x) + 1) % 10, best, "far below chance"),
        pytest.param(best, lambda x: (best(x) + 1) % 10, "far below chance", marks=pytest.mark.slow),
    ],
)
def test_classes(recorded, targets, held_out, said):
    n = 64 if said == "memorised, not learnt" else 1024
    record = recorded(lambda: run(10, F.cross_entropy, targets, held_out, n=n))
    found = [one.message for one in record.findings if one.code == "MS742"]
    assert [one.partition(":")[0] for one in found] == ([said] if said else [])
