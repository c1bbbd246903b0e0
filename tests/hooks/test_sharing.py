"""The classic trap: a function that works in place also changes what others read, and that is named."""

from collections.abc import Callable
from typing import Any

import pytest
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


def test_a_parameter_that_is_written_to_is_put_back(unchanged: Check) -> None:
    def wipe(module: nn.Module, args: Any, output: Tensor) -> None:
        module.weight.data.zero_()

    module = model()
    check = unchanged(module)
    _, (report,) = run(module, "call=f.py:fn@conv1", function=wipe)
    check()
    assert report.moved == ("the parameter conv1.weight",)
    assert_close(module(X), model()(X))
