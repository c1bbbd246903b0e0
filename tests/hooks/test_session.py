"""The session: what observers see, and that the model is as it was afterwards."""

from collections.abc import Callable

import pytest
import torch
from session_models import Net, Seen, Swallowing, X, run
from tolerance import assert_close
from torch import nn

from modelscope_cli.hooks.session import ForwardError, HookSession

Check = Callable[[nn.Module], Callable[[], None]]


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


def test_nothing_is_left_after_an_early_stop(net: Net, unchanged: Check) -> None:
    check = unchanged(net)
    assert run(net, Seen(), wanted=frozenset({("block.bn", 0)})) is None
    check()


def test_the_users_own_hooks_work_inside_and_after(net: Net) -> None:
    run(net)
    assert net.seen_by_user == []  # it did, and what it wrote on the model was taken back
    heard: list[str] = []
    net.head.register_forward_hook(lambda *_: heard.append("out"))
    run(net)
    net(*X)
    assert heard == ["out", "out"]


def test_the_sessions_answer_is_the_models_own(net: Net) -> None:
    model = nn.Sequential(net.stem, net.head).eval()
    assert_close(run(model, Seen()), model(*X))
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
