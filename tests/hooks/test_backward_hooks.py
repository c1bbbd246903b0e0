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
        ("param-grad:scale=3@conv1", lambda m: [p.register_hook(lambda g: 3 * g) for p in m.conv1.parameters()]),
        ("param-grad:add=1(1)@conv1", lambda m: m.conv1.bias.register_hook(lambda g: g + 1)),
        ("param-grad:zero[2](0)@conv1", lambda m: m.conv1.weight.register_hook(
            lambda g: g.index_fill(0, torch.tensor(2), 0))),
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
    assert report.fired == (2 if text.startswith("param-grad:scale") else 1)
    assert report.max_abs_difference is not None
    assert report.max_abs_difference > 0


def test_full_backward_changes_what_goes_on_to_the_inputs() -> None:
    module = model()
    module.relu.inplace = False
    found, (report,) = run(module, "full-backward:zero@conv1", backward=True)
    reference = model()
    reference.conv1.register_full_backward_hook(lambda m, grad_input, grad_output: (grad_input[0] * 0,))
    reference.relu.inplace = False
    reference(X).square().sum().backward()
    assert same(found, gradients(reference))
    assert_close(found["conv1.weight"], plain()["conv1.weight"])
    assert not are_close(found["stem.weight"], plain()["stem.weight"])
    assert (report.fired, report.layers) == (1, ("conv1",))


@pytest.mark.parametrize("kind", ["grad", "param-grad", "full-backward"])
def test_a_function_is_called_as_pytorch_calls_it(kind: str) -> None:
    seen: list[Any] = []

    def on_tensor(grad: Tensor) -> Tensor:
        seen.append(grad)
        return grad * 2

    def on_module(module: nn.Module, grad_input: Any, grad_output: Any) -> Tensor:
        seen.append((module, len(grad_input), len(grad_output)))
        return grad_input[0] * 2

    module = model()
    function = on_module if kind == "full-backward" else on_tensor
    found, (report,) = run(module, f"{kind}:call=f.py:fn@conv2", function=function, backward=True)
    truth = plain()
    assert len(seen) == report.fired == (2 if kind == "param-grad" else 1)
    doubled = {
        "grad": {"conv2.weight": 2, "conv2.bias": 2, "conv1.weight": 2, "conv1.bias": 2},
        "param-grad": {"conv2.weight": 2, "conv2.bias": 2},
        "full-backward": {"conv1.weight": 2, "conv1.bias": 2},
    }[kind]
    for name in set(truth) - {"stem.weight", "stem.bias"}:
        assert_close(found[name], doubled.get(name, 1) * truth[name], A_NETWORK)


def test_the_gradient_at_a_layer_that_hands_on_its_input_is_its_own() -> None:
    """Zero on the way through the shortcut leaves what comes through the convolutions."""

    def attach(module: nn.Module) -> None:
        module.shortcut.register_forward_hook(lambda m, a, out: out.detach())

    found, _ = run(model(), "grad:zero@shortcut", backward=True)
    assert same(found, by_hand(attach))


def test_a_block_and_the_layer_in_it_share_a_parameter_and_change_it_once() -> None:
    module = nn.Sequential(nn.Sequential(nn.Conv2d(3, 2, 1)), nn.Identity())
    bound, _ = bind(module, "param-grad:scale=2@0*")
    with HookSession(module, interventions=bound.interventions, with_gradients=True) as session:
        session.run((X,)).sum().backward()
        bias = module[0][0].bias.grad
    assert_close(bias, torch.full((2,), 2 * 2 * 36.0))
    (report,) = bound.reports()
    assert (report.layers, report.fired, report.never_fired) == (("0", "0.0"), 2, ())


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5"])
def test_models_that_work_in_place_take_every_hook_but_one(name: str) -> None:
    torch.manual_seed(0)
    module = get_model(name, weights=None).eval()
    x = torch.rand(1, 3, 64, 64)

    def found(*texts: str) -> dict[str, Tensor]:
        bound, _ = bind(module, *texts, function=lambda *_: None)
        with HookSession(module, interventions=bound.interventions, with_gradients=True) as session:
            session.run((x,)).square().sum().backward()
            return gradients(module)

    every = [
        f"{kind}:{act}@re:."
        for kind in ("forward", "grad", "param-grad")
        for act in ("scale=1", "call=f.py:fn")
    ]
    assert same(found(*every), found())


def test_nothing_is_left_on_tensors_parameters_and_operations() -> None:
    module = model()
    bound, _ = bind(
        module,
        "grad:scale=2@conv",
        "param-grad:scale=2@conv",
        "grad:call=f.py:fn@conv",
        function=lambda g: None,
    )
    with HookSession(module, interventions=bound.interventions, with_gradients=True) as session:
        output = session.run((X,))
    output.square().sum().backward()
    assert same(gradients(module), plain())
    assert not any(parameter._backward_hooks for parameter in module.parameters())


@pytest.mark.parametrize("kind", ["grad", "param-grad", "full-backward"])
@pytest.mark.parametrize("what", ["raises", "text", "shape"])
def test_a_bad_function_is_refused_and_leaves_nothing(unchanged: Check, kind: str, what: str) -> None:
    def function(*_: Any) -> Any:
        if what == "raises":
            raise CannotRunError("mine")
        return "text" if what == "text" else torch.zeros(1, 7)

    module = model()
    check = unchanged(module)
    with pytest.raises(CannotRunError, match="mine" if what == "raises" else "returned a"):
        run(module, f"{kind}:call=f.py:fn@conv2", function=function, backward=True)
    module.zero_grad()
    check()


@pytest.mark.parametrize(("text", "message", "hint"), [
    ("grad:zero[4]@conv2", "no channel 4 at the gradient at the output of conv2, only 0..3", "grad:zero[0..3]"),
    ("grad:zero(1)@conv2", "no (1) at the output of conv2, only 0", "grad:zero(0)@conv2"),
    ("param-grad:zero(2)@conv2", "no (2) at the parameters of conv2, only 0..1", "param-grad:zero(0)@conv2"),
    ("param-grad:zero(0)@relu", "no (0) at the parameters of relu, nothing at all", "'param-grad:zero@relu'"),
    ("param-grad:zero[9](0)@conv2", "no channel 9 at the gradient of conv2.weight, only 0..3", "[0..3](0)"),
])  # fmt: skip
def test_what_is_not_there_is_a_usage_error(unchanged: Check, text: str, message: str, hint: str) -> None:
    module = model()
    check = unchanged(module)
    with pytest.raises(UsageError) as caught:
        run(module, text, backward=True)
    module.zero_grad()
    check()
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
