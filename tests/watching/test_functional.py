"""What modules compute between their layers, each against torch's own numbers."""

import math
import warnings

import pytest
import torch
from tolerance import close
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from modelscope_cli.records.naming import is_rectifier


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        out = F.relu(self.conv(x))
        out = self.conv(out)
        out += x
        out.relu_()
        return torch.cat((out, x), 1)[:, :4].clamp(min=0)


class Net(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(3, 4, 3), block(), nn.Linear(4, 5)

    def forward(self, x):
        x = self.block(self.block(torch.tanh(self.stem(x))))
        x = F.max_pool2d(x, 2).mean((2, 3)).view(-1, 4)
        return F.log_softmax(F.dropout(self.head(x), 0.0, self.training), 1)


def train(model, make=lambda: torch.randn(2, 3, 8, 8), steps=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(make()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def functions(heard, step=0):
    return [(name, call) for _, name, call in heard.names(step) if "#f" in name]


def types(heard):
    return {row[1]: row[3] for report in heard.reports for row in report.layers}


def test_each_has_a_row_by_the_module_that_calls_it(watching):
    heard = watching(lambda: train(Net()))
    block = ["block.relu#f1", "block.add#f1", "block.relu#f2", "block.cat#f1", "block.relu#f3"]
    assert functions(heard) == [
        ("tanh#f1", 0),
        *((name, call) for call in (0, 1) for name in block),
        ("max_pool2d#f1", 0),
        ("dropout#f1", 0),
        ("log_softmax#f1", 0),
    ]
    assert [name for _, name, call in heard.names()][:3] == ["stem", "tanh#f1", "block.conv"]
    kinds = types(heard)
    assert (kinds["block.relu#f2"], kinds["block.add#f1"], kinds["tanh#f1"]) == ("F.relu", "add", "F.tanh")
    assert is_rectifier(kinds["block.relu#f3"])
    assert not is_rectifier(kinds["tanh#f1"])


def test_figures_and_gradients_are_torchs_own(watching):
    seen = {}

    def script():
        model, x = Net(), torch.randn(2, 3, 8, 8)
        made = torch.tanh(model.stem(x))
        made.retain_grad()
        rest = F.max_pool2d(model.block(model.block(made)), 2).mean((2, 3))
        F.log_softmax(model.head(rest), 1).square().mean().backward()
        seen.update(mean=made.detach().double().mean().item(), grad=made.grad.norm().item())
        model.zero_grad()
        train(model, lambda: x)

    sums = watching(script).sums("tanh#f1")
    assert sums.moments.mean == close(seen["mean"])
    assert math.sqrt(sums.grad_squares) == close(seen["grad"])


@pytest.mark.parametrize(("compute", "names"), [
    (lambda x: x + 1, []),
    (lambda x: x + x[:1], []),  # an offset
    (lambda x: x.view(-1).reshape(x.shape).transpose(0, 1), []),
    (lambda x: x.clamp(0, 6), []),
    (lambda x: x.clamp(min=-1), []),
    (lambda x: torch.clamp_min(x, 0), ["relu#f1"]),
    (lambda x: x + x, ["add#f1"]),
    (lambda x: F.gelu(F.silu(x)), ["silu#f1", "gelu#f1"]),
    (lambda x: F.sigmoid(x) @ x.T, ["sigmoid#f1", "matmul#f1"]),
    (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), ["scaled_dot_product_attention#f1"]),
    (lambda x: F.layer_norm(x, x.shape[1:]), ["layer_norm#f1"]),
    (lambda x: F.linear(x, torch.eye(4)), ["linear#f1"]),
])  # fmt: skip
def test_what_changes_values_is_a_row_and_what_moves_them_is_not(watching, compute, names):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return compute(self.layer(x))

    heard = watching(lambda: train(Wrapped(), lambda: torch.randn(4, 4)))
    assert [name for name, _ in functions(heard)] == names


def test_a_loop_over_time_does_not_make_a_row_of_every_turn(watching):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(50):
                x = torch.tanh(self.layer(x))
            return x

    heard = watching(lambda: train(Recurrent(), lambda: torch.randn(4, 4)))
    assert len(functions(heard)) == 16
    assert [kind for _, kind, _ in heard.events] == ["many-calls"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_counts_once(watching, use_reentrant):
    class Checkpointed(Block):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=use_reentrant)

    heard = watching(lambda: train(Net(Checkpointed), steps=2))
    n = heard.sums("stem").moments.n
    assert heard.sums("block.relu#f1", 1, 1).moments.n == n
    assert [heard.sums("block.add#f1", step).moments.n for step in (0, 1)] == [n, n]


def test_modes_of_the_script_are_where_they_were(watching):
    class Own(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.seen += 1
            return function(*args, **(kwargs or {}))

    class Moded(Block):
        def forward(self, x):
            with Own() as own, torch.device("cpu"):
                y = F.relu(self.conv(x))
            self.seen = own.seen
            with torch.device("cpu"):
                return F.gelu(self.conv(y)) + x

    counts = []

    def script():
        model = Net(Moded)
        with torch.device("cpu"):
            train(model)
        counts.append(model.block.seen)
        assert torch.overrides._get_current_function_mode_stack() == []

    script()
    heard = watching(script)
    assert counts[0] == counts[1]  # it does not see what we compute
    assert [name for name, call in functions(heard) if call == 0 and "." in name] == [
        "block.relu#f1",
        "block.gelu#f1",
        "block.add#f1",
    ]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_forward_that_raises_leaves_no_mode(watching, error):
    class Raising(Block):
        is_raising = True

        def forward(self, x):
            if self.is_raising:
                raise error
            return super().forward(x)

    def script():
        model = Net(Raising)
        with pytest.raises(error):
            train(model)
        if error is RuntimeError:
            assert torch.overrides._get_current_function_mode_stack() == []
        model.block.is_raising = False
        train(model, steps=2)
        assert torch.overrides._get_current_function_mode_stack() == []

    heard = watching(script)
    assert ("block.add#f1", 0) in functions(heard, 1)


def test_what_is_transformed_traced_or_compiled_is_left_alone(watching):
    def script():
        model = Net()
        x = torch.randn(2, 3, 8, 8)
        values = dict(model.named_parameters())
        torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).square().mean())(values)
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            torch.jit.trace(model, x, check_trace=False)
        train(model)

    heard = watching(script)
    n = heard.sums("stem").moments.n
    assert heard.sums("tanh#f1").moments.n == n == 2 * 4 * 36

    def compiled():
        activation = torch.compile(F.gelu, backend="eager")

        class Partly(Block):
            def forward(self, x):
                return activation(F.relu(self.conv(x)))

        train(Net(Partly))

    with warnings.catch_warnings(action="ignore"):  # dynamo looks for the gradient of everything
        assert functions(watching(compiled)) == []


def test_an_evaluation_pass_and_a_frozen_part_have_none(watching):
    def script():
        model = Net()
        model.block.eval()
        with torch.no_grad():
            model(torch.randn(2, 3, 8, 8))
        optimizer = train(model)
        model.eval()
        model(torch.randn(2, 3, 8, 8))
        optimizer.step()

    names = [name for name, _ in functions(watching(script))]
    assert names == ["tanh#f1", "max_pool2d#f1", "dropout#f1", "log_softmax#f1"]


def test_only_in_the_modules_that_were_asked_for(watching):
    heard = watching(lambda: train(Net()), patterns=("block",))
    assert {name for _, name, _ in heard.names()} >= {"block", "block.add#f1"}
    assert "tanh#f1" not in {name for _, name, _ in heard.names()}
