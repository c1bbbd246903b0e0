"""The measured columns of `summary`: against hooks of our own, autograd, and a clock that ticks once a look."""

import itertools

import pytest
import torch
from tolerance import assert_close
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.summary import summary
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


def test_a_model_without_layers_is_measured():
    (row,) = ms.summary(nn.ReLU(), torch.tensor([[-1.0, 2.0]]), measure=("time", "zero")).layers
    assert row.zero_fraction == 0.5
    assert row.time_ms > 0


def test_the_time_of_a_call_has_everything_in_it(net, x, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(summary.time, "perf_counter", lambda: float(next(ticks)))
    found = rows(ms.summary(net, x, measure=("time",)))
    # Each call looks at the clock when it begins and when it ends.
    expected = {"": 9, "block": 5, "block.0": 1, "block.1": 1, "head": 1}
    assert {name: row.time_ms for name, row in found.items()} == {k: 1000 * n for k, n in expected.items()}


def test_the_time_is_the_median_of_forwards_behind_a_first_one(net, x, monkeypatch):
    lengths = iter([1000.0, 3.0, 1.0, 2.0, 90.0, 2.0])  # of the whole forward

    class Clock(summary._Timer):
        def leave(self, call, *rest):
            self.times[call.name, call.index].append(next(lengths) if not call.depth else 0.0)

    monkeypatch.setattr(summary, "_Timer", Clock)
    assert rows(ms.summary(net, x, measure=("time",)))[""].time_ms == 2000.0


def test_nothing_is_measured_unless_asked_for(net, x):
    first, second = ms.summary(net, x), ms.summary(net, x, measure=("time", "zero", "gradient"))
    assert all((row.time_ms, row.zero_fraction, row.grad_norm) == (None,) * 3 for row in first.layers)
    assert all(row.time_ms is not None for row in second.layers)
    assert second.totals == first.totals


def test_values_of_random_weights_are_warned_of(x):
    record = ms.summary("squeezenet1_1", input_shape=(1, 3, 64, 64), measure=("zero",))
    assert [warning.code for warning in record.run.warnings] == ["random_weights"]
    assert record.run.device != "meta"
    assert ms.summary("squeezenet1_1", input_shape=(1, 3, 64, 64), measure=("time",)).run.warnings == ()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"measure": ("speed",)}, "'speed' is not a measured column"),
        ({"weights": "auto"}, "'--weights auto' has no effect"),
        ({"device": "cpu"}, "'--device cpu' has no effect"),
    ],
)
def test_what_cannot_be_measured_is_refused(keywords, message):
    with pytest.raises(UsageError, match=message):
        ms.summary("squeezenet1_1", **keywords)
