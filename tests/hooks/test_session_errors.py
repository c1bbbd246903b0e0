"""The session when something raises: what is said, and that nothing is left behind."""

from collections.abc import Callable
from typing import Any

import pytest
from session_models import Net, Raise, Seen, Swallowing, X, run
from torch import nn

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.session import Call, ForwardError, HookSession, Observer

Check = Callable[[nn.Module], Callable[[], None]]


class RaisingObserver(Observer):
    def __init__(self, where: str) -> None:
        self.where = where

    def enter(self, call: Call, *_: Any) -> None:
        if self.where == "enter" and call.name == "block.bn":
            raise ZeroDivisionError("mine")

    def leave(self, call: Call, *_: Any) -> None:
        if self.where == "leave" and call.name == "block.bn":
            raise ZeroDivisionError("mine")


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_nothing_is_left_after_a_forward_that_raises(
    net: Net, unchanged: Check, error: BaseException
) -> None:
    net.head.append(Raise(error))
    check = unchanged(net)
    expected = ForwardError if isinstance(error, Exception) else type(error)
    with pytest.raises(expected):
        run(net, Seen())
    error.__traceback__ = None
    check()


@pytest.mark.parametrize("where", ["enter", "leave"])
def test_an_observers_error_comes_out_as_it_is(net: Net, unchanged: Check, where: str) -> None:
    check = unchanged(net)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(net, RaisingObserver(where))
    check()


def test_nothing_is_left_when_the_caller_raises(net: Net, unchanged: Check) -> None:
    check = unchanged(net)
    with pytest.raises(KeyError), HookSession(net, [Seen()]):
        raise KeyError
    check()


def test_nothing_is_left_when_attaching_fails(net: Net, unchanged: Check) -> None:
    class NoHooks(nn.Linear):
        def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no hooks here")

    net.head.append(NoHooks(4, 4))
    check = unchanged(net)
    with pytest.raises(RuntimeError, match="no hooks"):
        run(net)
    check()


def test_a_caught_exception_leaves_the_call_stack_right() -> None:
    model = Swallowing(nn.Sequential(nn.Identity(), Raise(ValueError("caught"))))
    seen = Seen()
    run(model, seen)
    depths = {call.name: call.depth for call in seen.entered}
    assert depths == {"": 0, "first": 1, "first.0": 2, "first.1": 2, "last": 1}
    assert [call.name for call in seen.left] == ["first.0", "last", ""]
    assert seen.innermost == ["first.0", "last"]


def test_the_error_names_the_innermost_layer_and_what_it_was_given() -> None:
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Sequential(nn.Conv2d(5, 3, 1))))
    with pytest.raises(ForwardError) as caught:
        run(model)
    error = caught.value
    assert error.call is not None
    assert (error.call.name, error.call.depth, error.input_shapes) == ("1.0.0", 3, ((2, 3, 8, 8),))
    assert error.message.startswith("forward raised in 1.0.0 (Conv2d), given [2, 3, 8, 8]: RuntimeError: ")
    assert "\n" not in error.message
    assert error.hint
    assert error.exit_code == 4


@pytest.mark.parametrize("stage", ["register_forward_pre_hook", "register_forward_hook"])
@pytest.mark.parametrize("on", [0, None])
def test_a_hook_of_the_users_own_may_raise(unchanged: Check, stage: str, on: int | None) -> None:
    def bad(*_: Any) -> None:
        raise ValueError("in the user's hook")

    model = nn.Sequential(nn.Identity(), nn.Identity())
    getattr(model if on is None else model[on], stage)(bad)
    check = unchanged(model)
    with pytest.raises(ForwardError, match="in the user's hook"):
        run(model, Seen())
    check()


def test_a_lazy_layer_is_refused_before_it_takes_a_shape() -> None:
    model = nn.Sequential(nn.Identity(), nn.LazyConv2d(4, 1))
    with pytest.raises(CannotRunError, match=r"layer '1' \(LazyConv2d\)") as caught:
        run(model)
    assert caught.value.hint
    assert model(*X).shape == (2, 4, 8, 8)
