"""The session: what observers see, and that the model is as it was whatever happened inside."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.session import Call, ForwardError, HookSession, Observer

Check = Callable[[nn.Module], Callable[[], None]]
X = (torch.ones(2, 3, 8, 8),)


class Seen(Observer):
    """Writes down the calls, and the sum of what each gave at the moment it was given."""

    def __init__(self) -> None:
        self.entered: list[Call] = []
        self.left: list[Call] = []
        self.innermost: list[str] = []
        self.sums: dict[str, float] = {}

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.entered.append(call)

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self.left.append(call)
        if is_innermost:
            self.innermost.append(call.label)
        if isinstance(output, Tensor) and not output.is_meta:
            self.sums[call.label] = float(output.sum())


class Block(nn.Module):
    """Batch norm that its own forward trains, a ReLU used twice in place, and marks left on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.bn = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout()
        self.history: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}
        self.register_buffer("counter", torch.zeros(1))
        self.counter: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.bn.train()
        self.drop.train()
        self.counter = self.counter + 1
        self.last_input = x
        self.history.append(x)
        self.cache["x"] = x
        self.conv.weight.requires_grad_(False)
        self.conv.register_forward_hook(lambda *_: None)
        x = self.relu(self.bn(self.conv(x)) - 0.5)
        return self.relu(self.drop(x) - 1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(inplace=True))
        self.block = Block()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
        self.stem[0].eval()  # flags are mixed
        self.block.drop.eval()
        self.stem[0].bias.requires_grad_(False)
        self.head[1].weight.grad = torch.ones_like(self.head[1].weight)
        self.seen_by_user: list[str] = []
        self.head[1].register_forward_hook(lambda *_: self.seen_by_user.append("out"))
        self.head[1].register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)))


class Raise(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


class RaisingObserver(Observer):
    def __init__(self, where: str) -> None:
        self.where = where

    def enter(self, call: Call, *_: Any) -> None:
        if self.where == "enter" and call.name == "block.bn":
            raise ZeroDivisionError("mine")

    def leave(self, call: Call, *_: Any) -> None:
        if self.where == "leave" and call.name == "block.bn":
            raise ZeroDivisionError("mine")


def run(model: nn.Module, *observers: Observer, **options: Any) -> Any:
    with HookSession(model, observers, **options) as session:
        return session.run(X)


@pytest.fixture
def net() -> Iterator[Net]:
    torch.manual_seed(0)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    yield Net()
    torch.backends.mha.set_fastpath_enabled(fastpath)


@pytest.mark.parametrize("fastpath", [True, False])
def test_nothing_is_left_on_the_model(net: Net, unchanged: Check, fastpath: bool) -> None:
    torch.backends.mha.set_fastpath_enabled(fastpath)
    check = unchanged(net)
    with HookSession(net, [Seen()]) as session:
        session.run(X)
        assert not any(module.training for module in net.stem)
        assert net.block.history
        assert not torch.backends.mha.get_fastpath_enabled()
        assert not torch.equal(net.block.bn.running_mean, torch.zeros(3))
    check()
    assert not hasattr(net.block, "last_input")


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


def test_nothing_is_left_after_an_early_stop(net: Net, unchanged: Check) -> None:
    check = unchanged(net)
    assert run(net, Seen(), wanted=frozenset({("block.bn", 0)})) is None
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


def test_the_users_own_hooks_work_inside_and_after(net: Net) -> None:
    run(net)
    assert net.seen_by_user == []  # it did, and what it wrote on the model was taken back
    heard: list[str] = []
    net.head.register_forward_hook(lambda *_: heard.append("out"))
    run(net)
    net(*X)
    assert heard == ["out", "out"]


def test_observers_see_what_the_users_hooks_made_of_it() -> None:
    model = nn.Sequential(nn.Identity())
    model[0].register_forward_hook(lambda module, args, output: output * 0)
    seen = Seen()
    run(model, seen)
    assert seen.sums["0"] == 0


def test_the_sessions_answer_is_the_models_own(net: Net) -> None:
    model = nn.Sequential(net.stem, net.head).eval()
    assert torch.equal(run(model, Seen()), model(*X))
    assert run(model, Seen()).requires_grad is False


def test_rows_are_per_call(net: Net) -> None:
    seen = Seen()
    run(net, seen)
    rows = [(call.label, call.type, call.order, call.index, call.depth) for call in seen.entered]
    assert rows == [
        ("", "Net", 1, 0, 0),
        ("stem", "Sequential", 2, 0, 1),
        ("stem.0", "Conv2d", 3, 0, 2),
        ("stem.1", "ReLU", 4, 0, 2),
        ("block", "Block", 5, 0, 1),
        ("block.conv", "Conv2d", 6, 0, 2),
        ("block.bn", "BatchNorm2d", 7, 0, 2),
        ("block.relu", "ReLU", 8, 0, 2),
        ("block.drop", "Dropout", 9, 0, 2),
        ("block.relu#1", "ReLU", 10, 1, 2),
        ("head", "Sequential", 11, 0, 1),
        ("head.0", "Flatten", 12, 0, 2),
        ("head.1", "Linear", 13, 0, 2),
    ]
    assert seen.innermost == [row[0] for row in rows if row[4] == 2]
    assert {call.order for call in seen.left} == set(range(1, 14))


def test_a_layer_under_two_names_is_counted_as_one() -> None:
    relu = nn.ReLU()
    seen = Seen()
    run(nn.Sequential(relu, nn.Identity(), relu), seen)
    assert [call.label for call in seen.entered] == ["", "0", "1", "0#1"]


def test_every_pass_counts_from_the_start(net: Net) -> None:
    seen = Seen()
    with HookSession(net, [seen], wanted=frozenset({("block.relu", 1)})) as session:
        session.run(X)
        with pytest.raises(ForwardError):
            session.run((torch.ones(1, 5, 8, 8),))
        session.run(X)
    assert [(call.order, call.index) for call in seen.left] == [(10, 1), (10, 1)]


def test_what_was_reduced_stays_when_the_next_layer_works_in_place() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.ReLU(inplace=True))
    nn.init.constant_(model[0].weight, -1.0)
    seen = Seen()
    run(model, seen)
    assert seen.sums == {"": 0.0, "0": -3.0 * 2 * 3 * 64, "1": 0.0}


class Swallowing(nn.Module):
    """Goes on after whatever its first part raises."""

    def __init__(self, first: nn.Module, caught: type[BaseException] = Exception) -> None:
        super().__init__()
        self.first, self.last, self.caught = first, nn.Identity(), caught

    def forward(self, x: Tensor) -> Tensor:
        with suppress(self.caught):
            x = self.first(x)
        return self.last(x)


@pytest.mark.parametrize("guard", [False, True])
def test_an_early_stop_really_stops(guard: bool) -> None:
    ran: list[str] = []
    model: nn.Module = nn.Sequential(nn.Identity(), nn.Identity())
    model[1].register_forward_hook(lambda *_: ran.append("later"))
    model = Swallowing(model) if guard else nn.Sequential(model)
    name = "first.0" if guard else "0.0"
    seen = Seen()
    assert run(model, seen, wanted=frozenset({(name, 0)})) is None
    assert [call.name for call in seen.left] == [name]
    assert ran == []
    run(model, seen)
    assert ran == ["later"]


def test_a_model_that_swallows_everything_runs_to_its_end() -> None:
    model = Swallowing(nn.Identity(), BaseException)
    seen = Seen()
    assert run(model, seen, wanted=frozenset({("first", 0)})) is X[0]
    assert [call.name for call in seen.left] == ["first"]


def test_a_model_cannot_swallow_an_observers_error() -> None:
    class Bad(Observer):
        def leave(self, *_: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Swallowing(nn.Identity()), Bad())


def test_a_caught_exception_leaves_the_call_stack_right() -> None:
    model = Swallowing(nn.Sequential(nn.Identity(), Raise(ValueError("caught"))))
    seen = Seen()
    run(model, seen)
    depths = {call.name: call.depth for call in seen.entered}
    assert depths == {"": 0, "first": 1, "first.0": 2, "first.1": 2, "last": 1}
    assert [call.name for call in seen.left] == ["first.0", "last", ""]
    assert seen.innermost == ["first.0", "last"]


def test_a_call_made_while_an_exception_is_handled_is_a_call_like_any_other() -> None:
    class Fallback(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = Raise(ValueError("caught")), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except ValueError:
                return self.good(x)

    seen = Seen()
    run(Fallback(), seen)
    assert [call.name for call in seen.left] == ["good", ""]


def test_an_error_after_a_caught_one_is_not_blamed_on_the_caught_layer() -> None:
    model = Swallowing(Raise(ValueError("caught")))
    model.last = Raise(TypeError("final"))
    with pytest.raises(ForwardError, match=r"in last \(Raise\).*TypeError: final") as caught:
        run(model)
    assert caught.value.call is not None
    assert caught.value.call.depth == 1


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


def test_an_error_of_the_second_call_says_so() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.linear(x))

    with pytest.raises(ForwardError, match=r"in linear#1 \(Linear\), given \[2, 3, 8, 4\]"):
        run(Twice())


def test_an_error_of_the_model_itself_is_not_blamed_on_a_layer() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.fine(x) @ torch.ones(5)

    with pytest.raises(ForwardError, match=r"in the model itself \(Wrong\), given \[2, 3, 8, 8\]"):
        run(Wrong())


@pytest.mark.parametrize("n_arguments", [0, 2])
def test_a_wrong_number_of_inputs_is_a_forward_error(n_arguments: int) -> None:
    with pytest.raises(ForwardError, match="TypeError"), HookSession(nn.Sequential()) as session:
        session.run(X * n_arguments)


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


def test_only_the_named_layers_are_shown(net: Net) -> None:
    seen = Seen()
    run(net, seen, names=frozenset({"block.relu"}))
    assert [call.label for call in seen.left] == ["block.relu", "block.relu#1"]


def test_the_random_state_is_the_same_for_every_session() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    model = Noisy()
    assert torch.equal(run(model), run(model))


def test_sessions_nest(net: Net, unchanged: Check) -> None:
    check = unchanged(net)
    outer, inner = Seen(), Seen()
    with HookSession(net, [outer]) as session:
        run(net, inner)
        session.run(X)
    check()
    assert len(inner.left) == 13
    assert len(outer.left) == 26


def test_attention_shows_its_insides(unchanged: Check) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    check = unchanged(model)
    seen = Seen()
    with HookSession(model, [seen]) as session:
        session.run((torch.ones(1, 4, 8),))
    assert {"self_attn", "linear1", "norm2"} <= {call.name for call in seen.left}
    check()


def test_a_lazy_layer_is_refused_before_it_takes_a_shape() -> None:
    model = nn.Sequential(nn.Identity(), nn.LazyConv2d(4, 1))
    with pytest.raises(CannotRunError, match=r"layer '1' \(LazyConv2d\)") as caught:
        run(model)
    assert caught.value.hint
    assert model(*X).shape == (2, 4, 8, 8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchscript_inside_runs_unseen_and_keeps_its_flags() -> None:
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout()))
    model = nn.Sequential(script, nn.ReLU())
    script[1].eval()
    before = [module.training for module in model.modules()]
    seen = Seen()
    run(model, seen)
    assert [call.name for call in seen.left] == ["1", ""]
    assert [module.training for module in model.modules()] == before


def test_a_graph_made_before_can_still_go_backward() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()
    loss = model(*X).sum()
    run(model, Seen())
    loss.backward()
    assert model[0].weight.grad is not None
