"""Masks of the pruned weights, as made by `torch.nn.utils.prune`, without changing the weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune

from modelscope_cli.analysis.pruning.request import PruneRequest
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.selection import names_of
from modelscope_cli.models.architecture import seeded


@dataclass(frozen=True, slots=True)
class Prunable:
    """A weight that can be cut: a parameter of two or more dimensions and the layer that owns it."""

    layer: str
    type: str
    name: str  # of the parameter inside the layer
    weight: nn.Parameter
    channel_dim: int  # of the output channels; where the weight is transposed they come second


def find_prunable(model: nn.Module, layers: Sequence[str], exclude: Sequence[str]) -> list[Prunable]:
    """Return the weights of the selected layers, of all without patterns; a shared weight counts once.

    A layer that is named means everything below it as well.
    """
    selected = _below(model, layers) if layers else set(model.modules())
    selected -= _below(model, exclude) if exclude else set()
    prunables: dict[nn.Parameter, Prunable] = {}
    for layer, module in list_layers(model):
        if module in selected:
            for name, weight in _weights(module):
                dim = 1 if isinstance(module, nn.modules.conv._ConvTransposeNd) else 0
                prunables.setdefault(weight, Prunable(layer.name, layer.type, name, weight, dim))
    if not prunables:
        if exclude:
            subject, hint = f"--exclude '{exclude[0]}' leaves", "leave out --exclude"
        elif layers:
            subject, hint = f"layer pattern '{layers[0]}' matches", "--layer conv"
        else:
            subject, hint = "the model has", "modelscope summary ...   shows what it has"
        raise UsageError(f"{subject} no layer with weights that can be pruned (2 dimensions or more)", hint)
    return list(prunables.values())


def _weights(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the weights of a layer that can be cut, without those of layers inside it."""
    for name, weight in module.named_parameters(recurse=False):
        is_named_so = name == "weight" or name.endswith("_weight")  # in_proj_weight of an attention
        if is_named_so and not is_lazy(weight) and weight.is_floating_point() and weight.ndim > 1:
            yield name, weight


def _below(model: nn.Module, patterns: Sequence[str]) -> set[nn.Module]:
    names = names_of(
        model, patterns, (), lambda module: any(next(_weights(one), None) for one in module.modules())
    )
    layers = [module for layer, module in list_layers(model) if layer.name in names]
    return {module for above in layers for module in above.modules()}


def make_masks(
    prunables: Sequence[Prunable], amount: float, request: PruneRequest
) -> dict[nn.Parameter, Tensor]:
    """Return a mask for each weight, False where it is cut: bool, of the weight's shape and on its device.

    Cut are round(amount * n) of a layer's n weights or channels, or of all weights together. `l1` and `l2` cut
    those of the smallest norm, which for single weights is the same; `random` any, with a larger amount the same
    ones and more.

    Args:
        amount: 0..1, instead of the request's own.
    """
    copies = [prunable.weight.detach().cpu() for prunable in prunables]
    if request.is_global:
        flat = torch.cat([copy.flatten() for copy in copies])
        whole = _compute(flat, amount, request, 0, request.seed)
        parts = whole.split([copy.numel() for copy in copies])
        masks = [part.view(copy.shape) for part, copy in zip(parts, copies, strict=True)]
    else:
        # Each layer is seeded on its own: what is drawn for one does not depend on how many are cut in another.
        masks = [
            _compute(copy, amount, request, prunable.channel_dim, seed)
            for seed, (prunable, copy) in enumerate(zip(prunables, copies, strict=True), request.seed)
        ]
    return {
        prunable.weight: mask.bool().to(prunable.weight.device)
        for prunable, mask in zip(prunables, masks, strict=True)
    }


def _compute(scores: Tensor, amount: float, request: PruneRequest, channel_dim: int, seed: int) -> Tensor:
    with seeded(seed % 2**64):
        method = _torch_method(request, float(amount), channel_dim)  # the integer 1 would mean one weight
        return method.compute_mask(scores, default_mask=torch.ones_like(scores))


def _torch_method(request: PruneRequest, amount: float, channel_dim: int) -> Any:
    if request.method == "random":
        if request.structured:
            return prune.RandomStructured(amount, dim=channel_dim)
        return prune.RandomUnstructured(amount)
    if request.structured:
        return prune.LnStructured(amount, n=2 if request.method == "l2" else 1, dim=channel_dim)
    return prune.L1Unstructured(amount)
