"""The classic trap: a function that works in place also changes what others read, and that is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hook_models import X, model, run
from tolerance import are_close, assert_close
from torch import Tensor, nn

Check = Callable[[nn.Module], Callable[[], None]]


def double_output(module: nn.Module, args: Any, output: Tensor) -> None:
    output.mul_(2)


def double_data(module: nn.Module, args: Any, output: Tensor) -> None:
    output.data.mul_(2)  # torch counts no version of this


def double_input(module: nn.Module, args: Any, output: Any = None) -> None:
    args[0].mul_(2)


def zero_gradient(grad: Tensor) -> None:
    grad.zero_()


def zero_grad_input(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
    grad_input[0].zero_()


class Views(nn.Module):
    """Layers whose output lies in the memory of their input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.drop = nn.Dropout()
        self.flat = nn.Flatten()
        self.sigmoid = nn.Sigmoid()
        self.block = nn.Sequential(nn.Linear(144, 3), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.sigmoid(self.flat(self.drop(self.conv(x)))))


@pytest.mark.parametrize("function", [double_output, double_data])
@pytest.mark.parametrize(("layer", "moved"), [
    ("drop", ("the output of conv", "the input of drop")),
    ("flat", ("the output of conv", "the input of drop", "the output of drop", "the input of flat")),
    ("conv", ()),
    ("sigmoid", ()),
    ("block.0", ()),
    ("block.1", ()),  # the ReLU had overwritten its input before
    ("block", ()),  # the output of the last layer in it is its own
])  # fmt: skip
def test_an_output_that_others_read(function: Callable[..., Any], layer: str, moved: tuple[str, ...]) -> None:
    _, (report,) = run(model(Views), f"call=f.py:fn@{layer}", function=function)
    assert report.moved == moved
    assert report.max_abs_difference is not None
    assert report.max_abs_difference > 0


@pytest.mark.parametrize("kind", ["forward", "pre"])
def test_an_input_that_others_read(kind: str) -> None:
    _, (report,) = run(model(), f"{kind}:call=f.py:fn@conv1", function=double_input)
    own = () if kind == "pre" else ("the input of conv1",)
    assert report.moved == ("the output of stem", *own)


def test_what_it_names_has_really_moved() -> None:
    """The output of the stem goes into both branches: in place on the shortcut, called last, changes conv1's input
    only for who looks at it afterwards, but the stem's output for good."""
    module = model()
    kept: dict[str, Tensor] = {}
    module.stem.register_forward_hook(lambda m, a, out: kept.update(stem=out, before=out.clone()) and None)
    _, (report,) = run(module, "call=f.py:fn@shortcut", function=double_output)
    assert report.moved == ("the output of stem", "the input of conv1", "the input of shortcut")
    assert torch.equal(kept["stem"], 2 * kept["before"])


def test_a_new_tensor_moves_nothing() -> None:
    for texts, function in [
        (["call=f.py:fn@re:."], lambda module, args, output: output * 1),
        (["grad:call=f.py:fn@re:.", "param-grad:call=f.py:fn@re:."], lambda grad: grad * 1),
    ]:
        _, reports = run(model(), *texts, function=function, backward=True)
        assert not any(report.moved for report in reports)


@pytest.mark.parametrize(("layer", "moved", "also_zero"), [
    ("shortcut", ("the gradient at the output of conv2",), "conv2.weight"),
    ("conv2", (), None),  # the shortcut, called later, has used its gradient by then
    ("conv1", (), None),
    ("head", (), None),
])  # fmt: skip
def test_a_gradient_that_another_branch_gets(
    layer: str, moved: tuple[str, ...], also_zero: str | None
) -> None:
    found, (report,) = run(
        model(NoIdentity), f"grad:call=f.py:fn@{layer}", function=zero_gradient, backward=True
    )
    assert report.moved == moved
    if also_zero:
        assert not found[also_zero].any()
    clean, _ = run(model(NoIdentity), f"grad:zero@{layer}", backward=True)
    assert are_close(found, clean) == (not moved)


class NoIdentity(nn.Module):
    """Two convolutions side by side, added: both get the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.shortcut = nn.Tanh()
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.conv2(self.conv1(x).sigmoid()) + self.shortcut(x))


def test_a_gradient_whose_other_reader_is_the_same_tensor_as_another_layers() -> None:
    """The identity's gradient is also the one of the last convolution; both ways round."""
    for layer, other in [("conv2", "stem"), ("shortcut", "conv2")]:
        found, (report,) = run(model(), f"grad:call=f.py:fn@{layer}", function=zero_gradient, backward=True)
        assert report.moved == (f"the gradient at the output of {other}",)
        assert not found["stem.weight"].any()
        assert not found["conv2.weight"].any()


def test_a_parameter_that_is_handed_the_gradient_of_another() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(2, 3, 6, 6)), nn.Parameter(torch.ones(2, 3, 6, 6))

        def forward(self, x: Tensor) -> Tensor:
            return x + (self.a + self.b)

    module = nn.Sequential(Sum())
    found, (report,) = run(module, "param-grad:call=f.py:fn@0", function=Once(), backward=True)
    assert report.moved == ("the gradient at the parameter 0.b",)
    assert not found["0.a"].any()
    assert not found["0.b"].any()


class Once:
    """Zeroes the first gradient it is given."""

    def __init__(self) -> None:
        self.is_done = False

    def __call__(self, grad: Tensor) -> None:
        if not self.is_done:
            grad.zero_()
        self.is_done = True


def test_the_gradients_of_two_inputs_that_are_one() -> None:
    class Add(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.add = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1), Add()

        def forward(self, x: Tensor) -> Tensor:
            return self.add(self.left(x), self.right(x))

    found, (report,) = run(
        model(Both), "full-backward:call=f.py:fn@add", function=zero_grad_input, backward=True
    )
    assert report.moved == ("the gradient at the input of add [1]",)
    assert not found["right.weight"].any()


def test_a_parameter_that_is_written_to_is_put_back(unchanged: Check) -> None:
    def wipe(module: nn.Module, args: Any, output: Tensor) -> None:
        module.weight.data.zero_()

    module = model()
    check = unchanged(module)
    _, (report,) = run(module, "call=f.py:fn@conv1", function=wipe)
    check()
    assert report.moved == ("the parameter conv1.weight",)
    assert_close(module(X), model()(X))
