"""Masks of the pruned weights, as made by `torch.nn.utils.prune`, without changing the weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune

from modelscope_cli.analysis.pruning.request import PruneRequest
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import ChannelFinder, list_layers, tensors_in
from modelscope_cli.hooks.selection import names_of
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.architecture import seeded
from modelscope_cli.models.fit import listed
from modelscope_cli.records.run import Notice


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
            for name, weight in module.named_parameters(recurse=False):
                if _is_weight(name, weight):
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


def _below(model: nn.Module, patterns: Sequence[str]) -> set[nn.Module]:
    names = names_of(model, patterns, ())
    layers = [module for layer, module in list_layers(model) if layer.name in names]
    return {module for above in layers for module in above.modules()}


def _is_weight(name: str, value: nn.Parameter) -> bool:
    is_named_so = name == "weight" or name.endswith("_weight")  # in_proj_weight of an attention
    return is_named_so and not is_lazy(value) and value.is_floating_point() and value.ndim > 1


def make_masks(
    prunables: Sequence[Prunable],
    amount: float,
    request: PruneRequest,
    importance: Mapping[nn.Parameter, Tensor] | None = None,
) -> dict[nn.Parameter, Tensor]:
    """Return a mask for each weight, False where it is cut: bool, of the weight's shape and on its device.

    Cut are round(amount * n) of a layer's n weights or channels, or of all weights together. `l1` and `l2` cut
    those of the smallest norm, which for single weights is the same; `random` any, with a larger amount the same
    ones and more; `activation` the channels of the smallest importance.

    Args:
        amount: 0..1, instead of the request's own.
        importance: `(channels,)` for each weight, for `activation`; weights without one are left whole.
    """
    if importance is not None:
        prunables = [prunable for prunable in prunables if prunable.weight in importance]
    copies = [prunable.weight.detach().cpu() for prunable in prunables]
    if request.is_global:
        flat = torch.cat([copy.flatten() for copy in copies])
        whole = _compute(flat, amount, request, 0, request.seed)
        parts = whole.split([copy.numel() for copy in copies])
        masks = [part.view(copy.shape) for part, copy in zip(parts, copies, strict=True)]
    else:
        scores = copies if importance is None else [_spread(p, importance[p.weight]) for p in prunables]
        # Each layer is seeded on its own: what is drawn for one does not depend on how many are cut in another.
        masks = [
            _compute(score, amount, request, prunable.channel_dim, seed)
            for seed, (prunable, score) in enumerate(zip(prunables, scores, strict=True), request.seed)
        ]
    return {
        prunable.weight: mask.bool().to(prunable.weight.device)
        for prunable, mask in zip(prunables, masks, strict=True)
    }


def _spread(prunable: Prunable, importance: Tensor) -> Tensor:
    """Give every weight of a channel the channel's importance, as torch ranks channels by their norm."""
    shape = [1] * prunable.weight.ndim
    shape[prunable.channel_dim] = -1
    return importance.view(shape).expand(prunable.weight.shape)


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


class _MeanActivation(Observer):
    def __init__(self, prunables: Sequence[Prunable]) -> None:
        self.sums: dict[nn.Parameter, Tensor] = {}
        self._prunables = {prunable.layer: prunable for prunable in prunables if prunable.name == "weight"}
        self._channels = ChannelFinder()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        prunable = self._prunables.get(call.name)
        if prunable is None:
            return
        for _, tensor in tensors_in(output)[:1]:
            dim = self._channels.find(module, tensor)
            n_channels = prunable.weight.shape[prunable.channel_dim]
            if dim is not None and tensor.shape[dim] == n_channels:
                strength = tensor.float().abs().movedim(dim, 0).flatten(1).sum(1)
                self.sums[prunable.weight] = self.sums.get(prunable.weight, 0) + strength


def channel_importance(
    model: nn.Module,
    batches: Iterable[Batch],
    prunables: Sequence[Prunable],
    *,
    interventions: Sequence[Intervention] = (),
    track: Callable[[Iterable[Batch], str], Iterator[Batch]] = lambda batches, what: iter(batches),
) -> dict[nn.Parameter, Tensor]:
    """Return the sum of |activation| of every output channel over all images, `(C,)` on the CPU, for each weight.

    Within a layer it orders the channels as their mean does: the criterion of Molchanov et al. 2017, "Pruning
    Convolutional Neural Networks for Resource Efficient Inference", section 2.2, with the layer's own output as
    the activation. Weights whose layer was not seen to run are left out.

    Args:
        interventions: change every pass; what they do here is not counted.
    """
    observer = _MeanActivation(prunables)
    names = frozenset(prunable.layer for prunable in prunables)
    for intervention in interventions:
        intervention.repeat()
    with HookSession(model, [observer], names=names, interventions=interventions) as session:
        for batch in track(batches, "activations"):
            session.run(batch.args)
    return {weight: total.cpu() for weight, total in observer.sums.items()}


def unranked(prunables: Sequence[Prunable], importance: Mapping[nn.Parameter, Tensor]) -> tuple[Notice, ...]:
    """Warn of the weights whose channels were not seen."""
    unseen = [
        f"{prunable.layer}.{prunable.name}" for prunable in prunables if prunable.weight not in importance
    ]
    if len(unseen) == len(prunables):
        raise CannotRunError(
            f"no output of the selected layers was observed: {listed(unseen)}", "--method l1"
        )
    message = f"not pruned, because the output of their layers was not observed: {listed(unseen)}"
    return (Notice("unranked_weights", message),) if unseen else ()
