"""The layer at which the output stops depending on the image is named, and only if one is to blame."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.health.lost_signal import lost_signal
from modelscope_cli.inputs.batch import Batch


class Net(nn.Module):
    """Two convolutions, the second in a residual branch, and a head; `last` changes its scores."""

    def __init__(self, last=lambda scores: scores):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.relu = nn.Conv2d(3, 8, 3), nn.ReLU()
        self.branch, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head, self.last = nn.Linear(8, 4), last

    def forward(self, x):
        x = self.relu(self.stem(x))
        return self.last(self.head((x + self.norm(self.branch(x))).mean((2, 3))))


def net(name="", value=0.0, last=lambda scores: scores):
    model = Net(last).eval()
    for one in filter(None, name.split()):
        model.get_parameter(one).data[:1].fill_(value) if value > 1 else model.get_parameter(one).data.fill_(
            value
        )
    return model


CASES = {
    "head of zeros": (net("head.weight"), "head", "all its weights are zero"),
    "huge bias": (net("head.bias", 1e8), "head", "nearly all of its output is its bias, up to 1e+08"),
    "large bias": (net("head.bias", 1e4), "head", "of its size, its input by"),
    "stem of zeros": (net("stem.weight"), "stem", "all its weights are zero"),
    "dead": (net("stem.bias", -1e3), "relu", "its output is 0 everywhere"),
    "zeros everywhere": (net("stem.weight branch.weight norm.weight head.weight"), "stem", "zero"),
    "branch and head of zeros": (net("norm.weight head.weight"), "head", "zero"),
}
QUIET = {
    "healthy": net(),
    "branch begins as the identity": net("norm.bias"),
    "dropped by code": net(last=lambda scores: scores * 0 + 1),  # no layer is to blame
    "masked classes": net(last=lambda scores: scores.masked_fill(torch.arange(4) == 2, -1e9)),
}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("case", [*CASES, *QUIET])
def test_the_layer_that_loses_the_signal_is_named(case, n):
    model, layer, words = CASES[case] if case in CASES else (QUIET[case], None, "")
    lost = lost_signal(model, Batch((torch.randn(n, 3, 16, 16),), n), 0)
    assert (lost is None) == (case in QUIET)
    assert lost is None or (lost[0] == layer and words in lost[1]), lost


@pytest.mark.parametrize(("name", "value"), [("head.weight", 0.0), ("head.bias", 1e8), ("stem.weight", 0.0)])
@pytest.mark.parametrize("n", [1, 9])
def test_every_command_names_it(name, value, n):
    model, x = net(name, value), torch.randn(n, 3, 16, 16)
    layer = name.partition(".")[0]
    for command in (ms.predict, ms.stats):
        told = [one.message for one in command(model, x).run.warnings]
        assert any(f"{layer} (" in one for one in told), told
        assert not any("(" in one.message for one in command(net(), x).run.warnings)
