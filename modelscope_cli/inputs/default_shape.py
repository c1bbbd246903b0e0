"""The input a model was made for, read from its family, its weights' transforms and its first layer."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from modelscope_cli.hooks.selection import gets_through
from modelscope_cli.inputs.grammar import ShapeSpec
from modelscope_cli.inputs.stated import stated_shape, stated_text_length
from modelscope_cli.records.run import Shape

# Every published figure of torchvision's video and flow models was computed at these.
CLIP_FRAMES = 16
_FLOW_SIZE = (512, 512)

_DEFAULT_SIZE = {"segmentation": (520, 520), "video": (112, 112), "detection": (800, 800)}


def natural_shapes(
    family: str, transforms: Any | None, module: nn.Module | None, batch: int
) -> tuple[Shape, ...]:
    """Return the shape of each input of `family`; for detection, of each image in the list.

    `(N, 3, H, W)` for pictures, `(N, 3, T, H, W)` for video, two `(N, 3, H, W)` for optical flow, `batch`
    times `(3, H, W)` for detection, `(N, features)` for a custom model that starts with a linear layer. What the
    module itself says goes before all that.
    """
    stated = stated_shape(module)
    if stated is not None:
        return ((batch, *stated),)
    size = _natural_size(family, transforms, module)
    if family == "detection":
        return ((3, *size),) * batch
    if family == "optical_flow":
        return ((batch, 3, *size),) * 2
    if family == "video":
        return ((batch, 3, CLIP_FRAMES, *size),)
    first = first_layer(module)
    if isinstance(first, nn.Linear):
        features = (first.in_features,)
        is_of_patches = not _takes(module, first, (1, *features)) and _takes(module, first, (1, 3, *size))
        return ((batch, 3, *size),) if is_of_patches else ((batch, *features),)
    if isinstance(first, nn.Conv3d):
        return ((batch, first.in_channels, CLIP_FRAMES, *_DEFAULT_SIZE["video"]),)
    return ((batch, channels_entering(module, size), *size),)


def channels_entering(module: nn.Module | None, size: tuple[int, int]) -> int:
    """Return how many channels an image needs to have to get through the first layer of a model.

    Those of its first convolution, unless something in front of it makes them out of three or one, such as a
    space-to-depth stem or a conversion to gray; three where the model takes both.
    """
    first = first_layer(module)
    if first is None or isinstance(first, nn.Linear):
        return 3
    choices = dict.fromkeys((3, first.in_channels, 1))
    fitting = (n for n in choices if isinstance(first, nn.Conv2d) and _takes(module, first, (1, n, *size)))
    return next(fitting, first.in_channels)


def _takes(module: nn.Module | None, first: nn.Module, shape: Shape) -> bool:
    """Tell whether an input of this shape gets through the first layer."""
    if module is None:
        return False
    names = {id(layer): name for name, layer in module.named_modules()}
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    return gets_through(module, (torch.empty(shape, dtype=dtype, device="meta"),), names[id(first)])


def natural_named(module: nn.Module | None, batch: int) -> dict[str, ShapeSpec] | None:
    """Return the inputs of a model of transformers for text and images, which it takes by name; None for others."""
    shape, length = stated_shape(module), stated_text_length(module)
    if shape is None or length is None:
        return None
    return {"input_ids": ShapeSpec((batch, length), "int64"), "pixel_values": ShapeSpec((batch, *shape))}


def first_layer(module: nn.Module | None) -> nn.Conv2d | nn.Conv3d | nn.Linear | None:
    """Return the first registered layer, if it fixes how many channels or features go in."""
    layers = module.modules() if module is not None else ()
    first = next((layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Conv3d | nn.Linear)), None)
    # A lazy layer takes what comes.
    return None if isinstance(first, LazyModuleMixin) else first


def _natural_size(family: str, transforms: Any | None, module: nn.Module | None) -> tuple[int, int]:
    if family == "optical_flow":
        return _FLOW_SIZE
    resizer: Any = getattr(module, "transform", None)
    if family == "detection" and resizer is not None:
        width, height = resizer.fixed_size or (resizer.min_size[-1],) * 2
        return height, width
    stated = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None)
    if stated:
        return stated[0], stated[-1]
    return _DEFAULT_SIZE.get(family, (224, 224))
