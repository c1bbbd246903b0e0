"""`--hook` on inputs and outputs: as PyTorch's own hooks, in order, on any structure, gone afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hook_models import Named, Pair, Tree, X, bind, model, run
from tolerance import are_close, assert_close
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.session import HookSession

Check = Callable[[nn.Module], Callable[[], None]]


def by_hand(stage: str, layer: str, hook: Callable[..., Any]) -> Tensor:
    """What PyTorch makes of a hook."""
    module = model()
    getattr(module.get_submodule(layer), stage)(hook)
    with torch.no_grad():
        return module(X)


def zero_two(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * torch.tensor([0.0, 1.0, 0.0, 1.0]).reshape(4, 1, 1)


@pytest.mark.parametrize(("text", "stage", "layer", "hook"), [
    ("zero[0,2]@stem", "register_forward_hook", "stem", zero_two),
    ("add=10@head", "register_forward_hook", "head", lambda m, a, out: out + 10),
    ("pre:scale=3@conv2", "register_forward_pre_hook", "conv2", lambda m, args: args[0] * 3),
    ("zero@shortcut", "register_forward_hook", "shortcut", lambda m, a, out: out * 0),
    ("clamp=0,0.5@type:Conv2d@2", "register_forward_hook", "conv1", lambda m, a, out: out.clamp(0, 0.5)),
])  # fmt: skip
def test_it_does_what_the_same_hook_by_hand_does(
    unchanged: Check, text: str, stage: str, layer: str, hook: Callable[..., Any]
) -> None:
    module = model()
    check = unchanged(module)
    output, (report,) = run(module, text)
    check()
    assert_close(output, by_hand(stage, layer, hook))
    assert not are_close(output, module(X))
    assert report.fired == 1
    assert report.never_fired == ()


@pytest.mark.parametrize("kind", ["forward", "pre"])
def test_a_function_is_called_as_pytorch_calls_it(kind: str) -> None:
    seen: list[Any] = []

    def forward(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        seen.append((module, len(args)))
        return output.flip(1)

    def pre(module: nn.Module, args: tuple[Any, ...]) -> Tensor:  # not a tuple: PyTorch makes one of it
        seen.append((module, len(args)))
        return args[0].flip(1)

    function = forward if kind == "forward" else pre
    stage = "register_forward_hook" if kind == "forward" else "register_forward_pre_hook"
    module = model()
    output, _ = run(module, f"{kind}:call=f.py:fn@conv2", function=function)
    assert seen == [(module.conv2, 1)]
    assert_close(output, by_hand(stage, "conv2", function))
    untouched, (report,) = run(module, f"{kind}:call=f.py:fn@conv2", function=lambda *_: None)
    assert_close(untouched, module(X))
    assert (report.changed_fraction, report.max_abs_difference) == (0, 0)


def test_hooks_work_in_order() -> None:
    plain = model()(X)
    for texts, truth in [
        (["add=1@head", "scale=2@head"], (plain + 1) * 2),
        (["scale=2@head", "add=1@head"], plain * 2 + 1),
        (
            ["zero@head", "add=1@head", "zero[0]@head"],
            torch.ones_like(plain).index_fill(1, torch.tensor(0), 0),
        ),
    ]:
        output, reports = run(model(), *texts)
        assert_close(output, truth)
        assert [report.spec for report in reports] == texts


def test_structures_stay_what_they_are() -> None:
    plain, _ = run(model(Tree))
    output, (report,) = run(model(Tree), "add=1@fuse")
    assert list(output) == ["sum", "both", "named", "none"]
    assert isinstance(output["both"], Pair)
    assert isinstance(output["named"], Named)
    assert output["named"].n == 7
    assert output["none"] is None
    assert_close(output["both"].second, plain["both"].second + 1)
    assert_close(output["named"].values, X + 1)
    assert torch.equal(output["named"].ids, torch.arange(3))
    assert report.left_alone == "the output of fuse [named.ids]: it is of int64"


def double_output(module: nn.Module, args: Any, output: Tensor) -> None:
    output.mul_(2)


def double_data(module: nn.Module, args: Any, output: Tensor) -> None:
    output.data.mul_(2)  # torch counts no version of this


@pytest.mark.parametrize("function", [double_output, double_data])
@pytest.mark.parametrize("layer", ["shortcut", "flat", "conv2", "relu#1"])
def test_what_a_function_writes_in_place_reaches_no_other_value(function: Any, layer: str) -> None:
    """An identity returns its input, and flattening the memory of it."""
    output, (report,) = run(model(), f"call=f.py:fn@{layer}", function=function)
    assert_close(output, run(model(), f"scale=2@{layer}")[0])
    assert report.max_abs_difference is not None
    assert report.max_abs_difference > 0


def test_print_and_save_show_what_is_there() -> None:
    module = model(Tree)
    bound, said = bind(module, "save=x.safetensors@fuse", "pre:save=y.safetensors@fuse", "print[0]@fuse")
    with HookSession(module, interventions=bound.interventions) as session:
        output = session.run((X,))
        session.run((X + 1,))
    channel = output["sum"][:, 0]
    low, high = channel.min().item(), channel.max().item()
    figures = f"mean {channel.mean():.4g}, std {channel.std(correction=0):.4g}, {low:.4g} .. {high:.4g}"
    assert said[0] == f"print[0] fuse.sum: 2x1x6x6 float32, {figures}"
    assert len(said) == 2 * 4  # each tensor of real numbers, in two passes
    saved = bound.saved()
    keys = ["fuse.sum", "fuse.both.first", "fuse.both.second", "fuse.named.values", "fuse.named.ids"]
    assert list(saved["x.safetensors"]) == [*keys, *(f"{key}/2" for key in keys)]
    assert torch.equal(saved["x.safetensors"]["fuse.sum"], output["sum"])
    assert list(saved["y.safetensors"])[:3] == ["fuse.0", "fuse.1", "fuse.weight"]


def test_raise_on_nan_names_the_call_and_counts(unchanged: Check) -> None:
    def spoil(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output.index_fill(1, torch.tensor(2), torch.nan)

    module = model()
    run(module, "raise-on-nan@re:.")
    check = unchanged(module)
    with pytest.raises(CannotRunError) as caught:
        run(module, "call=f.py:fn@head", "raise-on-nan@re:.", function=spoil)
    check()
    assert caught.value.message == "--hook 'raise-on-nan@re:.': 2 of 10 values are NaN: the output of head"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("--hook 'nan-to-num@re:.'")
    output, reports = run(module, "call=f.py:fn@head", "nan-to-num@head", "raise-on-nan@head", function=spoil)
    assert output[:, 2].tolist() == [0, 0]
    assert reports[1].changed_fraction == 0.2
    assert reports[1].max_abs_difference == 0  # over what was finite


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("zero@nothing", "--hook 'zero@nothing': layer pattern 'nothing' matches no layer", "types: "),
        ("zero@hed", "--hook 'zero@hed': layer pattern 'hed' matches no layer", "did you mean head"),
        ("zero@relu#2", "--hook 'zero@relu#2': layer pattern 'relu#2': there is no call #2", "try relu"),
        ("pre:zero@type:Conv2d@9", "'type:Conv2d' has 3 calls", "try type:Conv2d"),
        ("zero[4]@stem", "channel 4 does not exist at the output of stem, only 0..3", "--hook 'zero[0..3]@stem'"),
        ("print[9]@stem", "channel 9 does not exist at the output of stem, only 0..3", "--hook 'print[0..3]@stem'"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_usage_error(unchanged: Check, text: str, message: str, hint: str) -> None:
    module = model()
    check = unchanged(module)
    with pytest.raises(UsageError) as caught:
        run(module, text)
    check()
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["call=f.py:fn@conv2", "pre:call=f.py:fn@conv2"])
@pytest.mark.parametrize(("answer", "words"), [
    ("text", "a str"),
    (X, "a tensor of 2x3x6x6 float32"),
    (torch.zeros(2, 4, 6, 6, dtype=torch.float64), "a tensor of 2x4x6x6 float64"),
    ((X, X), "a tuple of 2x3x6x6 float32, 2x3x6x6 float32"),
])  # fmt: skip
def test_a_wrong_answer_is_refused(unchanged: Check, text: str, answer: Any, words: str) -> None:
    module = model()
    check = unchanged(module)
    with pytest.raises(CannotRunError) as caught:
        run(module, text, function=lambda *_: answer)
    check()
    assert f"{__file__}:" in caught.value.message
    assert f"returned {words}, not a t" in caught.value.message


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt()])
def test_an_exception_of_the_function_leaves_nothing(unchanged: Check, error: BaseException) -> None:
    def bad(*_: Any) -> None:
        raise error

    module = model()
    check = unchanged(module)
    with pytest.raises(type(error)):
        run(module, "add=1@re:.", "call=f.py:fn@conv2", function=bad)
    check()
