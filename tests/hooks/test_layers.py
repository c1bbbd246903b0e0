"""What counts as a layer, and which tensors its output holds."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from modelscope_cli.hooks.layers import list_layers, map_tensors, tensors_in

A, B = torch.zeros(1), torch.ones(2)
Pair = namedtuple("Pair", "left right")


@dataclass
class Found:
    boxes: torch.Tensor
    extra: Any = None


@pytest.mark.parametrize(("value", "paths"), [
    (A, [""]),
    ((A, B), ["0", "1"]),
    ([A, [B]], ["0", "1.0"]),
    ({"out": A, "aux": B}, ["out", "aux"]),
    (OrderedDict(out=A, aux=B), ["out", "aux"]),
    (Pair(A, B), ["left", "right"]),
    (Found(A), ["boxes"]),
    (Found(A, {"x": (B,)}), ["boxes", "extra.x.0"]),
    ([{"boxes": A, "labels": B}], ["0.boxes", "0.labels"]),
    ((None, "text", 3, A, Found), ["3"]),
    (torch.max(torch.eye(2), 0), ["0", "1"]),
    (None, []),
    ({}, []),
    ({1: A}, ["1"]),
    ((((A,),),), ["0.0.0"]),
])  # fmt: skip
def test_every_tensor_is_found_under_its_path(value: Any, paths: list[str]) -> None:
    found = tensors_in(value)
    assert sorted(path for path, _ in found) == sorted(paths)
    assert all(isinstance(tensor, torch.Tensor) for _, tensor in found)


class Output(OrderedDict):
    """A dataclass that is a dict, too, as Hugging Face's outputs are."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


@dataclass
class Logits(Output):
    logits: torch.Tensor

    def __post_init__(self) -> None:
        self["logits"] = self.logits

    def __reduce__(self) -> Any:
        return type(self), (self.logits,)


@dataclass(frozen=True)
class Frozen:
    boxes: torch.Tensor
    n: int = 3


@pytest.mark.parametrize("value", [
    A,
    (A, [B, None], "text", 3),
    {"out": A, "aux": {"x": B}},
    OrderedDict(out=A, aux=B),
    defaultdict(list, out=A),
    Pair(A, [B]),
    Found(A, {"x": (B,)}),
    Frozen(A),
    torch.max(torch.eye(2), 0),
    Logits(A),
    None,
])  # fmt: skip
def test_replaced_tensors_lie_in_the_same_structure(value: Any) -> None:
    seen: list[str] = []

    def add(path: str, tensor: torch.Tensor) -> torch.Tensor:
        seen.append(path)
        return tensor + 1

    before = [(path, tensor.clone()) for path, tensor in tensors_in(value)]
    made = map_tensors(value, add)
    assert type(made) is type(value)
    assert seen == [path for path, _ in before]
    for (path, old), (other, new), (_, untouched) in zip(
        before, tensors_in(made), tensors_in(value), strict=True
    ):
        assert path == other
        assert torch.equal(new, old + 1)
        assert torch.equal(untouched, old)
    if isinstance(value, Logits):
        assert made["logits"] is made.logits
    assert map_tensors(value, lambda path, tensor: tensor) is value


def test_a_shared_module_is_one_layer_with_aliases() -> None:
    model = nn.Module()
    model.first = model.second = nn.ReLU()
    model.block = nn.Sequential(model.first)
    names = [(layer.name, layer.aliases) for layer, _ in list_layers(model)]
    assert names == [("", ()), ("first", ("second", "block.0")), ("block", ())]


def test_depth_and_leaves() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.MultiheadAttention(4, 1))
    seen = {layer.name: (layer.depth, layer.is_leaf) for layer, _ in list_layers(model)}
    assert seen == {
        "": (0, False),
        "0": (1, False),
        "0.0": (2, True),
        "1": (1, True),  # attention: its child is a weight, not a step
        "1.out_proj": (2, True),
    }
