"""The measured columns of `summary`: against a clock that ticks once a look."""

import itertools

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.summary import times
from modelscope_cli.errors import UsageError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.block(x).mean((2, 3)))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def x():
    return torch.randn(1, 3, 8, 8)


def rows(record):
    return {row.name: row for row in record.layers}


def test_the_time_of_a_call_has_everything_in_it(net, x, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(times.time, "perf_counter", lambda: float(next(ticks)))
    found = rows(ms.summary(net, x, measure=("time",)))
    # Each call looks at the clock when it begins and when it ends.
    expected = {"": 9, "block": 5, "block.0": 1, "block.1": 1, "head": 1}
    assert {name: row.time_ms for name, row in found.items()} == {k: 1000 * n for k, n in expected.items()}


def test_the_time_is_the_median_of_forwards_behind_a_first_one(net, x, monkeypatch):
    lengths = iter([1000.0, 3.0, 1.0, 2.0, 90.0, 2.0])  # of the whole forward

    def forward(self):
        length = next(lengths)
        return {key: length * (not key[0]) for key, _, _ in self._spans}

    monkeypatch.setattr(times._PassTimer, "forward", forward)
    assert rows(ms.summary(net, x, measure=("time",)))[""].time_ms == 2.0


class Slow(nn.Module):
    def __init__(self, sleep, seconds):
        super().__init__()
        self.fc, self.wait = nn.Linear(4, 4), lambda: sleep(seconds)

    def forward(self, x):
        self.wait()
        return self.fc(x)


def test_a_planted_wait_is_found_where_it_is(monkeypatch):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(times.time, "perf_counter", lambda: now[0])
    net = nn.Sequential(Slow(sleep, 20), nn.Sequential(Slow(sleep, 7), Slow(sleep, 3)))
    record = ms.summary(net, torch.ones(2, 4), measure=("time",))
    found = {name: row.time_ms for name, row in rows(record).items()}
    waits = {"": 30, "0": 20, "1": 10, "1.0": 7, "1.1": 3}
    assert {name: found[name] for name in waits} == {name: 1000 * wait for name, wait in waits.items()}


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UsageError, match="'speed' is not a value of measure"):
        ms.summary("squeezenet1_1", measure=("speed",))


def test_a_summary_on_a_device_runs_there():
    """With a device or weights of its own the model has values; the figures are those without data."""
    there, without = ms.summary("squeezenet1_1", device="cpu"), ms.summary("squeezenet1_1")
    assert (there.run.device, without.run.device) == ("cpu", "meta")
    assert (there.layers, there.totals) == (without.layers, without.totals)
    assert ms.summary("squeezenet1_1", weights="auto").run.device == "cpu"
