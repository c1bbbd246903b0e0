"""What `diff` says where B has a dtype of smaller range: overflow and underflow, each at a known place."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms

SIZE = 12


class Chain(nn.Module):
    """Linear layers; before layer `at`, the function `between` acts on the values."""

    def __init__(self, depth, at, between=None, scale=1.0, output_scale=1.0, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(depth + at)
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(depth))
        self.at, self.between = at, between
        with torch.no_grad():
            self.layers[at].weight.mul_(scale)
            self.layers[at].bias.mul_(scale * output_scale)
        self.to(dtype)

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            if n == self.at and self.between is not None:
                x = self.between(x)
            x = layer(x)
        return x


def found(model, dtype="float16", x=None):
    x = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(3)) if x is None else x
    return ms.diff(model, inputs=x, b_dtype=dtype)


PLACES = [(2, 0), (2, 1), (4, 2), (5, 4), (3, 1)]


@pytest.mark.parametrize(("depth", "at"), PLACES)
def test_a_weight_that_does_not_fit_is_named(depth, at):
    (cause,) = found(Chain(depth, at, scale=1e7)).causes
    assert cause.layer == f"layers.{at}"
    assert f"layers.{at}.weight does not fit in float16" in cause.message
    assert "65,504 (bfloat16 holds it)" in cause.message


@pytest.mark.parametrize(("depth", "at"), PLACES)
def test_weights_that_round_to_zero_are_counted(depth, at):
    model = Chain(depth, at, scale=1e-7)
    zeros = int((model.layers[at].weight.half() == 0).sum())
    (cause,) = found(model).causes
    assert f"layers.{at}.weight is too small for float16" in cause.message
    assert f"{zeros} of {SIZE * SIZE} values round to zero" in cause.message


@pytest.mark.parametrize(("depth", "at"), PLACES)
def test_an_output_beyond_the_largest_value_is_named_with_its_layer(depth, at):
    model = Chain(depth, at, output_scale=8e5)  # the biases alone
    with torch.no_grad():
        model.layers[at].bias.clamp_(-6e4, 6e4)
        model.layers[at].weight.mul_(1e5).clamp_(-6e4, 6e4)
    (cause,) = found(model).causes
    assert cause.layer == f"layers.{at}"
    assert cause.message.startswith(f"in layers.{at}, A reaches ")
    assert "above float16's largest, 65,504" in cause.message


BETWEEN = {
    "sum of squares": lambda x: x * 1e3 / ((x * 1e3) ** 2).sum(1, keepdim=True).sqrt(),
    "product": lambda x: (x * 1e4 * 1e4) / 1e8,
    "exponential": lambda x: torch.exp(x * 20 + 15).log() / 10,
    "power": lambda x: ((x.abs() + 8) ** 6) ** (1 / 6),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize(("depth", "at"), PLACES)
def test_what_arises_between_two_layers_is_not_laid_on_the_later_one(between, depth, at):
    outside, reached = found(Chain(depth, at, BETWEEN[between])).causes
    before = f"layers.{at - 1}" if at else "the input"
    assert f"so the difference arises between {before} and layers.{at}" in outside.message
    assert reached.message.startswith(f"between {before} and layers.{at}, A reaches ")


def test_values_lost_below_the_smallest_normal_number_are_found_between_layers():
    causes = found(Chain(3, 1, lambda x: x * 1e-9 * 1e9)).causes
    assert "between layers.0 and layers.1" in causes[0].message


def test_the_narrow_side_may_be_a():
    narrow, wide = (Chain(3, 1, BETWEEN["product"], dtype=dtype) for dtype in (torch.float16, torch.float32))
    assert ", B reaches " in ms.diff(narrow, wide, torch.randn(4, SIZE)).causes[-1].message


@pytest.mark.parametrize("between", [None, lambda x: x.masked_fill(x < 0, -torch.inf).softmax(1)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_alone_is_not_given_a_cause(between, dtype):
    assert not found(Chain(4, 2, between), dtype).causes


def test_the_rounding_of_the_input_is_not_taken_for_a_function():
    x = torch.randn(4, SIZE)
    assert not ms.diff(Chain(3, 1), inputs=x, b_dtype="float16", tolerance=1e-9).causes


def test_bfloat16_has_the_range_of_float32():
    assert not found(Chain(3, 1, BETWEEN["product"]), "bfloat16").causes
