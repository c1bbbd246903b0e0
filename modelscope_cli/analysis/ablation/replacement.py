"""What stands in for a layer's output when the layer is taken out: zeros, means, or its own values elsewhere."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.hooks.torch_private import leaves_of, map_leaves

ZERO, MEAN, SHUFFLE = "zero", "mean", "shuffle"


def is_replaceable(leaf: Any) -> bool:
    """Tell whether a part of a layer's output can be replaced: floats, with images and at least one more
    dimension."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim >= 2 and leaf.numel() > 0


def replace_output(
    output: Any, channel_dims: Sequence[int], how: str, seed: int, channel: int | None = None
) -> Any:
    """Return a layer's output with its tensors replaced, tuples and dicts kept; the original stays as it is.

    Args:
        channel_dims: where the channels of each replaceable tensor are, in order.
        channel: replace only this channel of the first of them.
    """
    places = [n for n, leaf in enumerate(leaves_of(output)) if is_replaceable(leaf)]
    dims = dict(list(zip(places, channel_dims, strict=True))[: None if channel is None else 1])
    numbers = itertools.count()

    def change(leaf: Any) -> Any:
        dim = dims.get(next(numbers))
        return leaf if dim is None else replaced(leaf, dim, how, seed, channel)

    return map_leaves(output, change)


def replaced(tensor: Tensor, channel_dim: int, how: str, seed: int, channel: int | None = None) -> Tensor:
    """Return a new tensor of the same shape, all channels or one of them replaced.

    `zero`: zeros. `mean`: in each channel of each image the mean over its positions. `shuffle`: the positions
    in another, seeded order, the same for all channels and images, so that what was seen stays and where is
    lost. Where every channel has a single value, the channels of an image are its positions.
    """
    positions = [dim for dim in range(1, tensor.ndim) if dim != channel_dim]
    if math.prod(tensor.shape[dim] for dim in positions) == 1:
        positions = [channel_dim]
    if how == ZERO:
        new = torch.zeros_like(tensor)
    elif how == MEAN:
        new = torch.empty_like(tensor).copy_(tensor.mean(positions, keepdim=True))
    else:
        new = torch.empty_like(tensor).copy_(_shuffled(tensor, positions, seed))
    if channel is None:
        return new
    whole = tensor.clone()
    whole.narrow(channel_dim, channel, 1).copy_(new.narrow(channel_dim, channel, 1))
    return whole


def _shuffled(tensor: Tensor, positions: list[int], seed: int) -> Tensor:
    last = list(range(-len(positions), 0))
    turned = tensor.movedim(positions, last)
    flat = turned.flatten(-len(positions))
    order = torch.randperm(flat.shape[-1], generator=torch.Generator().manual_seed(seed)).to(tensor.device)
    return flat[..., order].reshape(turned.shape).movedim(last, positions)
