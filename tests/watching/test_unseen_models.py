"""Models whose layers cannot be seen still have their loss and their parameters, by name."""

import gc

import torch
from torch import nn

from modelscope_cli.watching.custom_optimizers import find_owners


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


PARAMETERS = [("Net", name) for name in ("body.weight", "body.bias", "head.weight", "head.bias")]


def test_a_model_that_runs_only_later_keeps_its_name(watching):
    def script():
        model, other = Net(), nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for running in (other, model):
            running(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()

    first, second = watching(script).reports
    assert [row[:2] for row in first.parameters] == [row[:2] for row in second.parameters] == PARAMETERS
    assert [row[0] for row in first.layers] == ["Linear"]  # it ran, and got gradients
    assert [row[:2] for row in second.layers] == [("Net", "body"), ("Net", "relu#f1"), ("Net", "head")]


def test_parameters_that_no_module_holds_have_the_place_in_their_group(watching):
    def script():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.head = nn.Linear(8, 3)  # the optimizer trains the old one
        gc.collect()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

    (report,) = watching(script).reports
    names = [row[:2] for row in report.parameters]
    assert names == [*PARAMETERS[:2], ("SGD", "group0.2"), ("SGD", "group0.3")]


def test_owners_are_the_outermost_modules_inside_their_wrappers():
    model = nn.DataParallel(Net())
    assert find_owners([model.module.body.weight]) == [model.module]
    assert find_owners([nn.Parameter(torch.ones(1))]) == []
    assert find_owners([]) == []
