"""The measured columns of `summary`: against hooks of our own, autograd, and a clock that ticks once a look."""

import itertools

import pytest
import torch
from tolerance import assert_close
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.summary import times
from modelscope_cli.errors import CannotRunError, UsageError


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


def test_zeros_are_those_of_the_output(net, x):
    found = rows(ms.summary(net, x, measure=("zero",)))
    with torch.no_grad():
        hidden = net.block[0](x)
        relu, last = hidden.relu(), net(x)
        outputs = {"block.0": hidden, "block.1": relu, "block": relu, "head": last, "": last}
    for name, output in outputs.items():
        assert found[name].zero_fraction == float((output == 0).sum()) / output.numel()
    assert found["block.1"].zero_fraction > 0
    assert {row.time_ms for row in found.values()} == {row.grad_norm for row in found.values()} == {None}


def test_gradients_are_those_of_autograd(net, x):
    found = rows(ms.summary(net, x, measure=("gradient",)))
    hidden = net.block[0](x)
    hidden.retain_grad()
    output = net.head(hidden.relu().mean((2, 3)))
    output.retain_grad()
    nn.functional.cross_entropy(output, output.argmax(1)).backward()
    assert_close(torch.tensor(found["block.0"].grad_norm), hidden.grad.norm())
    assert_close(torch.tensor(found["head"].grad_norm), output.grad.norm())


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


class Wait(torch.autograd.Function):
    """Sleeps in the forward and in the backward."""

    @staticmethod
    def forward(ctx, x, sleep, before, after):
        ctx.sleep = lambda: sleep(after)
        sleep(before)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.sleep()
        return grad, None, None, None


class Slow(nn.Module):
    def __init__(self, sleep, before, after):
        super().__init__()
        self.fc, self.waits = nn.Linear(4, 4), (sleep, before, after)

    def forward(self, x):
        return Wait.apply(self.fc(x), *self.waits)


def test_a_planted_wait_is_found_where_it_is(monkeypatch):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(times.time, "perf_counter", lambda: now[0])
    net = nn.Sequential(Slow(sleep, 1, 20), nn.Sequential(Slow(sleep, 3, 7), Slow(sleep, 0, 9)))
    record = ms.summary(net, torch.ones(2, 4), measure=("time", "backward"))
    found = {name: (row.time_ms, row.backward_ms) for name, row in rows(record).items()}
    waits = {"": (4, 36), "0": (1, 20), "1": (3, 16), "1.0": (3, 7), "1.1": (0, 9)}
    assert {name: found[name] for name in waits} == {k: (1000 * a, 1000 * b) for k, (a, b) in waits.items()}
    assert record.slowest == ("0", "1.0", "1.1")  # 32 seconds of 40 are 21 + 10 + 9
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_model_without_gradients_has_no_backward():
    net = nn.Sequential(nn.Linear(4, 4)).requires_grad_(requires_grad=False)
    with pytest.raises(CannotRunError, match="no output depends on anything trainable"):
        ms.summary(net, torch.ones(2, 4), measure=("backward",))


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UsageError, match="'speed' is not a measured column"):
        ms.summary("squeezenet1_1", measure=("speed",))


def test_a_summary_on_a_device_runs_there():
    """With a device or weights of its own the model has values; the figures are those without data."""
    there, without = ms.summary("squeezenet1_1", device="cpu"), ms.summary("squeezenet1_1")
    assert (there.run.device, without.run.device) == ("cpu", "meta")
    assert (there.layers, there.totals) == (without.layers, without.totals)
    assert ms.summary("squeezenet1_1", weights="auto").run.device == "cpu"
