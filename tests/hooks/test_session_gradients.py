"""A session with a graph: nothing is cut short, the mode is the one asked for, interventions change what flows."""

from typing import Any

import pytest
import torch
from tolerance import assert_close
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer

X = (torch.ones(2, 4),)


class Seen(Observer):
    def __init__(self) -> None:
        self.labels: list[str] = []
        self.entered: dict[str, Tensor] = {}
        self.left: dict[str, Tensor] = {}

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.labels.append(call.label)
        self.entered[call.label] = args[0] if args else next(iter(kwargs.values()))

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self.left[call.label] = output


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 3))


def run(model: nn.Module, *observers: Observer, **options: Any) -> Any:
    with HookSession(model, observers, **options) as session:
        return session.run(X)


def test_a_graph_is_built_where_it_is_asked_for(net):
    assert run(net, with_gradients=True).requires_grad
    assert not run(net).requires_grad
    with torch.no_grad():
        assert run(net, with_gradients=True).requires_grad
        assert not torch.is_grad_enabled()


def test_a_forward_with_a_graph_runs_to_its_end(net):
    wanted = frozenset({("0", 0)})
    seen = Seen()
    assert run(net, seen, wanted=wanted) is None
    assert run(net, seen, wanted=wanted, with_gradients=True) is not None
    assert seen.labels == ["0", "0"]


@pytest.mark.parametrize("is_training", [True, False])
def test_the_mode_is_the_one_asked_for(net, is_training):
    net.train(not is_training)
    with HookSession(net, is_training=is_training):
        assert {module.training for module in net.modules()} == {is_training}
    assert {module.training for module in net.modules()} == {not is_training}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_inside_a_backward_pass_is_not_a_call(use_reentrant):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.body = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.body, self.first(x), use_reentrant=use_reentrant)

    seen, model = Seen(), Net()
    n_runs = []
    model.body[0].register_forward_hook(lambda *_: n_runs.append(1))
    with HookSession(model, [seen], with_gradients=True) as session:
        for n in (1, 2):
            session.run(X).sum().backward()
            assert seen.labels == ["", "first", "body", "body.0", "body.1"] * n
            assert len(n_runs) == 2 * n  # it did run again
            assert session.first_calls["body.1"].order == 5


class Times(Intervention):
    """Multiplies what one layer gives, or is given."""

    def __init__(self, label: str, factor: float, *, is_pre: bool = False) -> None:
        self.label, self.factor, self.is_pre = label, factor, is_pre

    def change_inputs(self, call: Call, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.is_pre and call.label == self.label:
            args = tuple(self.factor * arg for arg in args)
            kwargs = {key: self.factor * value for key, value in kwargs.items()}
        return args, kwargs

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        return output if self.is_pre or call.label != self.label else self.factor * output


class Named(nn.Module):
    """Calls its layer by keyword, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        torch.manual_seed(0)
        nn.init.normal_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(input=self.layer(input=x))


@pytest.mark.parametrize("is_pre", [True, False])
def test_an_intervention_changes_one_call_and_observers_see_the_change(is_pre):
    model, seen = Named(), Seen()
    result = run(model, seen, interventions=[Times("layer#1", 3, is_pre=is_pre)])
    with torch.no_grad():
        first = model.layer(X[0])
        expected = model.layer(3 * first) if is_pre else 3 * model.layer(first)
    assert_close(result, expected)
    assert_close(seen.left["layer"], first)
    assert_close(seen.left["layer#1"], expected)
    assert_close(seen.entered["layer#1"], 3 * first if is_pre else first)


def test_interventions_come_in_order_and_are_undone(net, unchanged):
    class Add(Times):
        def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
            return output + self.factor if call.label == self.label else output

    check = unchanged(net)
    plain = run(net)
    assert_close(run(net, interventions=[Times("2", 2), Add("2", 1)]), 2 * plain + 1)
    assert_close(run(net, interventions=[Add("2", 1), Times("2", 2)]), 2 * (plain + 1))
    assert_close(run(net), plain)
    check()


def test_an_intervention_that_raises_comes_out_as_it_is_and_leaves_nothing(net, unchanged):
    class Raises(Intervention):
        def change_output(self, *_: Any) -> Any:
            raise ZeroDivisionError("mine")

    check = unchanged(net)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(net, interventions=[Raises()])
    check()
