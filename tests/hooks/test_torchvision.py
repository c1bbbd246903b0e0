"""What the session and the selection promise, on torchvision's own models; without data where that works."""

from collections import Counter
from typing import Any

import pytest
import torch
from kinds import KINDS
from torch import nn

from modelscope_cli.hooks.layers import ChannelFinder, list_layers, tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.inputs.python_inputs import open_inputs
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import load_model, load_skeleton
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import ModelRequest

NEEDS_VALUES = ("ssdlite320_mobilenet_v3_large",)


def prepare(name: str) -> tuple[LoadedModel, tuple[Any, ...]]:
    request = ModelRequest(name, weights="none", device="cpu")
    loaded = load_model(request) if name in NEEDS_VALUES else load_skeleton(request)
    inputs = open_inputs(
        InputRequest(),
        family=loaded.family,
        transforms=loaded.transforms,
        module=loaded.module,
        device=loaded.device,
        dtype=loaded.dtype,
    )
    return loaded, next(iter(inputs)).args


class Everything(Observer):
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.dims: dict[str, tuple[tuple[int, ...], int | None]] = {}
        self._channels = ChannelFinder()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self.calls.append(call)
        for _, tensor in tensors_in(output):
            self.dims[call.name] = (tuple(tensor.shape), self._channels.find(module, tensor))


@pytest.mark.parametrize(("name", "layer", "n_channels"), [
    ("convnext_tiny", "features.1.0.block.4", 384),  # GELU between the two
    ("convnext_tiny", "features.1.0.block.6", 96),  # Permute back
    ("swin_t", "features.1.0.mlp.1", 384),
    ("resnet18", "layer1.0", 64),
])  # fmt: skip
def test_channels_are_found(name: str, layer: str, n_channels: int) -> None:
    loaded, args = prepare(name)
    seen = Everything()
    with HookSession(loaded.module, [seen]) as session:
        session.run(args)
    shape, dim = seen.dims[layer]
    assert dim is not None
    assert shape[dim] == n_channels


class Norm2d(nn.LayerNorm):
    """Like torchvision's LayerNorm2d."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("module", "shape", "dim"), [
    (Norm2d(8), (1, 8, 8, 8), 1),  # the last dimension is as long, and still not the channels
    (Norm2d(8), (1, 8, 4, 4), 1),
    (nn.LayerNorm(8), (1, 8, 8, 8), 3),
    (nn.LayerNorm(8), (1, 4, 4, 8), 3),
    (nn.LayerNorm((8, 4, 4)), (1, 8, 4, 4), 1),
    (nn.LayerNorm(8), (1, 8, 8), 2),
    (nn.LayerNorm(8), (5, 8), 1),
    (nn.Linear(2, 8), (1, 3, 4, 8), 3),
    (nn.Conv2d(1, 8, 1), (1, 8, 4, 4), 1),
    (nn.ReLU(), (1, 8, 4, 4), 1),
    (nn.ReLU(), (1, 5, 8), 2),
    (nn.ReLU(), (8,), None),
    (nn.ReLU(), (), None),
])  # fmt: skip
def test_channels_of_a_layer_by_itself(module: nn.Module, shape: tuple[int, ...], dim: int | None) -> None:
    assert ChannelFinder().find(module, torch.empty(shape)) == dim


@pytest.mark.slow
def test_layers_with_parameters_run_at_most_once() -> None:
    """`LoadedModel.is_feedforward` promises this, and selections stop early because of it."""
    n_checked = 0
    for name in KINDS:
        if name.startswith(("quantized", "raft")):
            continue
        loaded, args = prepare(name)
        if not loaded.is_feedforward:
            continue
        seen = Everything()
        with HookSession(loaded.module, [seen]) as session:
            session.run(args)
        calls = Counter(call.name for call in seen.calls)
        own = {layer.name for layer, module in list_layers(loaded.module) if module._parameters}
        assert calls[""] == 1, name
        assert {layer for layer in own if calls[layer] > 1} == set(), name
        n_checked += 1
    assert n_checked > 20
