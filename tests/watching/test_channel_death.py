"""Dead channels and saturated values, counted by hand."""

import json

import pytest
import torch
from tolerance import close
from torch import nn
from torch.nn import functional as F

from modelscope_cli import watch
from modelscope_cli.watching.log import log_file
from modelscope_cli.watching.read_series import merge_ranks, read_rank, read_series
from modelscope_cli.watching.step_sums import dead_fraction, pack, unpack


class Net(nn.Module):
    """Of six channels the second and the fifth are dead, the others only where `x` is negative."""

    def __init__(self, dims):
        super().__init__()
        self.layer = nn.Linear(6, 6) if dims < 3 else {3: nn.Conv1d, 4: nn.Conv2d}[dims](6, 6, 1)
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(6).reshape(self.layer.weight.shape))
            self.layer.bias.copy_(torch.tensor([0.0, -100, 0, 0, -100, 0]))
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.layer(x)) + F.relu(self.layer(x))


def run(model, batches, folder=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with watch(model, optimizer, out=folder) as watched:
        for batch in batches:
            for part in batch:
                model(part).sum().backward()
            optimizer.step()
    return watched.record()


def row(record, name):
    return next(one.series for one in record.layers if one.name == name)


@pytest.mark.parametrize("dims", [2, 3, 4])
@pytest.mark.parametrize("name", ["relu", "relu#f1"])
def test_dead_channels_are_named(dims, name):
    torch.manual_seed(0)
    x = torch.randn(8, 6, *(5,) * (dims - 2))
    series = row(run(Net(dims), [[x]]), name)
    assert series.dead_fraction == (2 / 6,)
    assert (series.channels, series.dead_channels) == (6, (1, 4))
    assert row(run(Net(dims), [[x]]), "layer").dead_fraction is None


def test_dead_is_what_no_pass_of_a_step_woke():
    passes = [[1.0, 1, -1, -1, 1, -1], [-1.0, 1, 1, -1, 1, -1]]
    record = run(Net(2), [[torch.tensor([one]) for one in passes]])
    assert row(record, "relu").dead_channels == (1, 3, 4, 5)


def test_what_is_written_is_what_is_read(tmp_path):
    kept = run(Net(4), [[torch.randn(2, 6, 3, 3)]], tmp_path)
    again = read_series(tmp_path)
    assert [one.series for one in kept.layers] == [one.series for one in again.layers]


def test_a_channel_is_dead_where_it_is_so_on_every_rank(tmp_path):
    logs = []
    for rank, values in enumerate(([1.0, 1, -1, -1, 1, -1], [-1.0, 1, 1, -1, 1, -1])):
        folder = tmp_path / str(rank)
        run(Net(2), [[torch.tensor([values])]], folder)
        logs.append(read_rank(log_file(folder)))
    (series,) = [one.series for one in merge_ranks(logs).layers if one.name == "relu"]
    assert series.dead_channels == (1, 3, 4, 5)


@pytest.mark.parametrize("alive", [None, (), (True,), (False,) * 70, (True, False) * 33 + (False,)])
def test_packed_channels_come_back(alive):
    assert unpack(json.loads(json.dumps(pack(alive)))) == alive
    assert dead_fraction(alive) == (alive.count(False) / len(alive) if alive else None)


GATES = {
    "tanh": (nn.Tanh(), torch.tanh, lambda y: y.abs() > 0.99),
    "sigmoid": (nn.Sigmoid(), torch.sigmoid, lambda y: (y < 0.01) | (y > 0.99)),
    "hardsigmoid": (nn.Hardsigmoid(), F.hardsigmoid, lambda y: (y < 0.01) | (y > 0.99)),
    "softmax": (nn.Softmax(1), lambda x: F.softmax(x, dim=1), lambda y: y.amax(1) > 0.999),
    "log_softmax": (nn.LogSoftmax(-1), lambda x: x.log_softmax(-1), lambda y: y.amax(1).exp() > 0.999),
}


@pytest.mark.parametrize("name", GATES)
def test_saturated_values_are_counted(name):
    module, function, is_saturated = GATES[name]

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.gate = nn.Linear(5, 5), module

        def forward(self, x):
            x = self.layer(x)
            return self.gate(x) * function(x)

    torch.manual_seed(0)
    model, x = Gated(), 10 * torch.randn(64, 5)
    with torch.no_grad():
        expected = is_saturated(function(model.layer(x))).double().mean().item()
    record = run(model, [[x[:32], x[32:]]])
    assert 0.02 < expected < 0.98
    assert row(record, "gate").saturated_fraction == (close(expected),)
    assert row(record, f"{name}#f1").saturated_fraction == (close(expected),)
    assert row(record, "layer").saturated_fraction is None
