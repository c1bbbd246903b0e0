"""`--hook` on gradients: as PyTorch's own hooks and as the chain rule say, and gone afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hook_models import X, bind, gradients, model, run
from tolerance import A_NETWORK, are_close, assert_close
from torch import Tensor, nn
from torchvision.models import get_model

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.session import HookSession

Check = Callable[[nn.Module], Callable[[], None]]


def by_hand(attach: Callable[[nn.Module], Any]) -> dict[str, Tensor]:
    """The gradients under a hook of PyTorch's, on a model of its own."""
    module = model()
    attach(module)
    module(X).square().sum().backward()
    return gradients(module)


def plain() -> dict[str, Tensor]:
    return by_hand(lambda module: None)


def on_output(layer: str, hook: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], Any]:
    def attach(module: nn.Module) -> None:
        module.get_submodule(layer).register_forward_hook(lambda m, a, out: out.register_hook(hook) and None)

    return attach


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return are_close(one, other)


@pytest.mark.parametrize(
    ("text", "attach"),
    [
        ("grad:clamp=-1e-3,1e-3@conv2", on_output("conv2", lambda grad: grad.clamp(-1e-3, 1e-3))),
        ("grad:zero[1]@conv1", on_output("conv1", lambda g: g.index_fill(1, torch.tensor(1), 0))),
    ],
)  # fmt: skip
def test_it_does_what_the_same_hook_by_hand_does(
    unchanged: Check, text: str, attach: Callable[[nn.Module], Any]
) -> None:
    module = model()
    check = unchanged(module)
    found, (report,) = run(module, text, backward=True)
    module.zero_grad()
    check()
    assert same(found, by_hand(attach))
    assert not same(found, plain())
    assert report.fired == 1
    assert report.max_abs_difference is not None
    assert report.max_abs_difference > 0


def test_a_function_is_called_as_pytorch_calls_it() -> None:
    seen: list[Any] = []

    def doubled(grad: Tensor) -> Tensor:
        seen.append(grad)
        return grad * 2

    found, (report,) = run(model(), "grad:call=f.py:fn@conv2", function=doubled, backward=True)
    truth = plain()
    assert len(seen) == report.fired == 1
    for name in set(truth) - {"stem.weight", "stem.bias"}:
        assert_close(found[name], (2 if name.startswith("conv") else 1) * truth[name], A_NETWORK)


def test_what_a_function_writes_in_place_reaches_no_other_gradient() -> None:
    """The shortcut and the last convolution get the same gradient."""

    def wipe(grad: Tensor) -> None:
        grad.zero_()

    found, (report,) = run(model(), "grad:call=f.py:fn@shortcut", function=wipe, backward=True)
    expected, _ = run(model(), "grad:zero@shortcut", backward=True)
    assert same(found, expected)
    assert report.changed_fraction is not None
    assert report.changed_fraction > 0


def test_the_gradient_at_a_layer_that_hands_on_its_input_is_its_own() -> None:
    """Zero on the way through the shortcut leaves what comes through the convolutions."""

    def attach(module: nn.Module) -> None:
        module.shortcut.register_forward_hook(lambda m, a, out: out.detach())

    found, _ = run(model(), "grad:zero@shortcut", backward=True)
    assert same(found, by_hand(attach))


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5"])
def test_models_that_work_in_place_take_every_hook(name: str) -> None:
    torch.manual_seed(0)
    module = get_model(name, weights=None).eval()
    x = torch.rand(1, 3, 64, 64)

    def found(*texts: str) -> dict[str, Tensor]:
        bound, _ = bind(module, *texts, function=lambda *_: None)
        with HookSession(module, interventions=bound.interventions, with_gradients=True) as session:
            session.run((x,)).square().sum().backward()
            return gradients(module)

    every = [f"{kind}:{act}@re:." for kind in ("forward", "grad") for act in ("scale=1", "call=f.py:fn")]
    assert same(found(*every), found())


def test_nothing_is_left_on_tensors_parameters_and_operations() -> None:
    module = model()
    bound, _ = bind(module, "grad:scale=2@conv", "grad:call=f.py:fn@conv", function=lambda g: None)
    with HookSession(module, interventions=bound.interventions, with_gradients=True) as session:
        output = session.run((X,))
    output.square().sum().backward()
    assert same(gradients(module), plain())
    assert not any(parameter._backward_hooks for parameter in module.parameters())


@pytest.mark.parametrize("what", ["raises", "text", "shape"])
def test_a_bad_function_is_refused_and_leaves_nothing(unchanged: Check, what: str) -> None:
    def function(*_: Any) -> Any:
        if what == "raises":
            raise CannotRunError("mine")
        return "text" if what == "text" else torch.zeros(1, 7)

    module = model()
    check = unchanged(module)
    with pytest.raises(CannotRunError, match="mine" if what == "raises" else "returned a"):
        run(module, "grad:call=f.py:fn@conv2", function=function, backward=True)
    module.zero_grad()
    check()


def test_a_channel_that_is_not_there_is_a_usage_error(unchanged: Check) -> None:
    module = model()
    check = unchanged(module)
    with pytest.raises(UsageError) as caught:
        run(module, "grad:zero[4]@conv2", backward=True)
    module.zero_grad()
    check()
    assert (
        "channel 4 does not exist at the gradient at the output of conv2, only 0..3" in caught.value.message
    )
    assert "grad:zero[0..3]" in (caught.value.hint or "")
