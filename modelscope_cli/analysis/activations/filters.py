"""The filters of convolutions, as maps."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from modelscope_cli.analysis.activations.maps import CapturedOutput, ChannelChoice, finished
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.selection import names_of
from modelscope_cli.records.featuremaps import FeatureMap

KIND = "filters"


def filters_of(
    model: nn.Module, layers: Sequence[str], exclude: Sequence[str], choice: ChannelChoice
) -> tuple[list[CapturedOutput], int]:
    """Return the filters of the selected convolutions, a map for each output channel, and how many are left out.

    The map of a filter that reads three channels has their colours, `(channels, 3, h, w)`. Of one that reads more,
    it is the slice with the largest norm, `(channels, h, w)`. Filters that are not images, such as 1 x 1, are left
    out unless they are named.

    Raises:
        CannotRunError: none of the layers is a convolution.
    """
    names = names_of(
        model, layers, exclude, lambda module: any(isinstance(one, _ConvNd) for one in module.modules())
    )
    convolutions = [
        (layer, module)
        for layer, module in list_layers(model)
        if layer.name in names and isinstance(module, _ConvNd)
    ]
    if not convolutions:
        which = "the selected layers have" if layers or exclude else "the model has"
        raise CannotRunError(f"{which} no convolution, so there are no filters", "--layer conv")
    found, n_left_out = [], 0
    for order, (layer, module) in enumerate(convolutions):
        kernels = _kernels(module)
        record = FeatureMap(layer.name, layer.type, order, 0, "", tuple(kernels.shape), kind=KIND)
        if kernels.ndim != 4 or max(kernels.shape[2:]) == 1:
            if layers:
                sides = " x ".join(map(str, kernels.shape[2:]))
                problem = f"filters of {sides} are not images"
                found.append(CapturedOutput(replace(record, problem=problem), None))
            n_left_out += not layers
            continue
        if kernels.shape[1] != 3:
            strongest = kernels.flatten(2).norm(dim=2).argmax(1)
            kernels = kernels[torch.arange(len(kernels), device=kernels.device), strongest]
        found.append(CapturedOutput(replace(record, channels=len(kernels)), kernels))
    return finished(found, choice), n_left_out


def _kernels(module: _ConvNd) -> Tensor:
    """Return the weight as `(output channels, input channels of its group, ...)`."""
    weight = module.weight.detach()
    if isinstance(module, _ConvTransposeNd):
        return weight.unflatten(0, (module.groups, -1)).transpose(1, 2).flatten(0, 1)
    return weight
