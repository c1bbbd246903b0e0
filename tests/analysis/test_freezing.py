"""Freezing: who gets a gradient, what it saves, and that every flag is put back."""

import pytest
import torch
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.freezing import set_trainable
from modelscope_cli.errors import CannotRunError, UsageError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def trained(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(("freeze", "train_only", "expected"), [
    ((), (), {"stem.0", "stem.1", "body.0", "head"}),
    (("stem",), (), {"body.0", "head"}),
    (("type:Conv2d",), (), {"stem.1", "head"}),
    ((), ("head",), {"head"}),
    ((), ("head", "body.*"), {"body.0", "head"}),
    (("stem.1",), ("stem",), {"stem.0"}),
])  # fmt: skip
def test_patterns_say_who_is_trained(freeze, train_only, expected):
    model = Net()
    set_trainable(model, freeze, train_only)
    assert trained(model) == {f"{name}.{kind}" for name in expected for kind in ("weight", "bias")}


def test_frozen_parameters_get_nothing_and_are_counted(measure, unchanged):
    model = Net()
    check = unchanged(model)
    whole, found = measure(model, X), measure(model, X, freeze=("stem",))
    check()
    assert found.totals.trainable_params == count(model.body, model.head)
    assert found.totals.frozen_params == count(model.stem)
    assert whole.totals.frozen_params == 0
    for row, free in zip(found.parameters, whole.parameters, strict=True):
        if row.layer.startswith("stem"):
            assert (row.mark, row.trainable, row.grad_norm, row.problem) == ("frozen", False, None, None)
        else:
            assert row == free  # what is trained gets what it got


@pytest.mark.parametrize("option", ["freeze", "train_only"])
@pytest.mark.parametrize(("pattern", "quoted"), [
    ("nothing", "'nothing' matches no layer"),
    ("relu", "relu' matches only layers without parameters"),
    ("conv@1", "'conv@1' names calls, which are not known here yet"),
    ("re:[", "'re:['"),
])  # fmt: skip
def test_a_pattern_that_freezes_nothing(measure, unchanged, option, pattern, quoted):
    model = Net()
    check = unchanged(model)
    with pytest.raises(UsageError) as caught:
        measure(model, X, **{option: (pattern,)})
    check()
    assert quoted in caught.value.message
    assert caught.value.hint


def test_something_has_to_be_trained(measure, unchanged):
    model = Net()
    check = unchanged(model)
    with pytest.raises(UsageError, match="nothing left to train"):
        measure(model, X, freeze=("*",))
    with pytest.raises(UsageError, match="nothing left to train"):
        measure(model, X, freeze=("head",), train_only=("head",))
    check()
    model.requires_grad_(False)
    with pytest.raises(CannotRunError, match="every parameter of the model is frozen"):
        measure(model, X)
    with pytest.raises(CannotRunError, match="the model has no parameters"):
        measure(nn.ReLU(), X)
