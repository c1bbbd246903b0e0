"""Models whose layers cannot be seen still have their loss and their parameters, by name."""

import gc

import pytest
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


def in_place(model):
    model.compile(backend="aot_eager")
    return model


def inside_a_function(model):
    return torch.compile(lambda x: model(x), backend="aot_eager")  # noqa: PLW0108  the function is compiled


# How it is compiled, and what is seen of it: as a whole, or not at all.
HIDDEN = {"compiled in place": (in_place, [("Net", "")]), "compiled in a function": (inside_a_function, [])}


def train(run, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses = []
    for _ in range(3):
        loss = run(torch.randn(4, 6)).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_compiled_model_has_losses_and_named_parameters(watching, kind):
    losses, (compiled, seen) = [], HIDDEN[kind]

    def script():
        torch._dynamo.reset()
        model = Net()
        losses.extend(train(compiled(model), model.parameters()))

    heard = watching(script)
    assert [report.loss for report in heard.reports] == losses
    for report in heard.reports:
        assert [row[:2] for row in report.parameters] == PARAMETERS
        assert all(row[3][0] and row[3][2] for row in report.parameters)
        assert [row[:2] for row in report.layers] == seen
    assert [kind for _, kind, _ in heard.events] == ["compiled"]


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
