"""From patterns to calls, without touching the model."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from modelscope_cli.hooks.selection import Selection, select, trace_calls, uncalled
from modelscope_cli.hooks.session import ForwardError

X = (torch.ones(1, 3, 64, 64),)


@cache
def resnet() -> nn.Module:
    return resnet18().eval()


def chosen(layers: list[str], exclude: list[str] | None = None, **options: Any) -> Selection:
    return select(resnet(), layers, exclude or [], X, **options)


@pytest.mark.parametrize("is_feedforward", [False, True])
def test_conv_means_all_twenty_once(is_feedforward: bool) -> None:
    selection = chosen(["conv"], is_feedforward=is_feedforward)
    assert selection.names is not None
    assert len(selection.names) == 20
    assert selection.wanted == {(name, 0) for name in selection.names}
    assert not selection.is_innermost_only


@pytest.mark.parametrize(("layers", "exclude", "wanted"), [
    (["type:ReLU@-1"], [], {("layer4.1.relu", 1)}),
    (["relu@-1"], [], {("relu", 0)}),
    (["layer1.0.relu#1"], [], {("layer1.0.relu", 1)}),
    (["layer1.0.relu"], [], {("layer1.0.relu", 0), ("layer1.0.relu", 1)}),
    (["layer1.0.relu"], ["layer1.0.relu#0"], {("layer1.0.relu", 1)}),
    (["layer1"], [], {("layer1", 0)}),
    (["type:BasicBlock@2"], [], {("layer1.1", 0)}),
    (["conv@1", "conv1"], [], {("conv1", 0)}),
    (["conv"], ["layer?.*"], {("conv1", 0)}),
    (["conv@1..3"], ["conv@2"], {("conv1", 0), ("layer1.0.conv2", 0)}),
])  # fmt: skip
def test_patterns_become_calls(layers: list[str], exclude: list[str], wanted: set[tuple[str, int]]) -> None:
    assert chosen(layers, exclude).wanted == wanted


def test_what_does_not_run_at_all_is_still_meant() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model.idle = nn.Linear(1, 1)
    model.forward = lambda x: model[1](model[0](x))
    selection = select(model, ["relu@1", "linear"], [], (torch.ones(1, 3),))
    assert selection.names == {"0", "1", "idle"}
    assert uncalled(model, selection, ["0", "1"], ()) == ("idle",)


def test_no_pattern_means_every_innermost_layer() -> None:
    assert chosen([]) == Selection(is_innermost_only=True)
    without = chosen([], ["batch", "type:Conv2d"])
    assert without.is_innermost_only
    assert without.names is not None
    assert not any("bn" in name or "conv" in name for name in without.names)
    assert "layer1.0.relu" in without.names


def test_the_order_of_calls_is_found_without_touching_the_model(
    unchanged: Callable[[nn.Module], Callable[[], None]],
) -> None:
    model = resnet18()
    model.layer1[0].eval()
    model.note = torch.ones(3)
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    check = unchanged(model)
    calls = trace_calls(model, X)
    check()
    assert calls is not None
    assert [call.name for call in calls[:3]] == ["", "conv1", "bn1"]


class DependsOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_runs: list[bool] = []
        self.small, self.large = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.large(x) if x.sum() > 0 else self.small(x)


class NotCopied(DependsOnValues):
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise LookupError("one of a kind")


@pytest.mark.parametrize("kind", [DependsOnValues, NotCopied])
def test_a_forward_that_needs_values_is_run_for_real(
    kind: type[DependsOnValues], unchanged: Callable[[nn.Module], Callable[[], None]]
) -> None:
    model = kind()
    check = unchanged(model)
    assert trace_calls(model, X, may_run=False) is None
    for x, name in ((X[0], "large"), (-X[0], "small")):
        assert [call.name for call in trace_calls(model, (x,)) or []] == ["", name]
    assert select(model, ["identity@-1"], [], X).wanted == {("large", 0)}
    assert select(model, ["identity"], [], X).wanted is None  # not worth a run of its own
    check()


def test_a_forward_that_cannot_run_at_all_says_so() -> None:
    with pytest.raises(ForwardError, match="in conv1"):
        select(resnet(), ["conv@2"], [], (torch.ones(1, 5, 64, 64),))
