"""Find the shape of an image that a model takes, after it raised for another one."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from modelscope_cli.records.run import Shape

T = TypeVar("T")
_USUAL_SIZES = (224, 32, 28, 64, 48, 96, 128, 256, 384, 512, 112, 160, 192, 227, 299)
_MAX_SIZE = 1024


def on_twin(model: nn.Module, watch: Callable[[nn.Module], T], *, with_hooks: bool = True) -> T:
    """Return what `watch` makes of a copy of the model on the meta device, with or without the model's hooks."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    if not with_hooks:
        for module in model.modules():
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                memo[id(hooks)] = OrderedDict()
    return watch(copy.deepcopy(model, memo))


def image_shape_taken(model: nn.Module, given: Tensor, failed: str | None) -> Shape | None:
    """Return the first `(N, C, H, W)` with which a forward on the meta device succeeds, nearest to the given one.

    Tried are the given height and width with the channels of the first convolution, the size the model states, and
    the size at which the linear layer that failed gets its number of features.

    Args:
        given: the input that it raised for, of one to four dimensions.
        failed: the name of the layer that raised, if one did.
    """

    def first(twin: nn.Module) -> Shape | None:
        return next(
            (shape for shape in _shapes(twin, given, failed) if _runs(twin, shape, given.dtype)), None
        )

    with suppress(Exception):  # copying may run any code of the model's attributes
        return on_twin(model, first, with_hooks=False)
    return None


def _stated_size(model: nn.Module) -> tuple[int, int] | None:
    """Return height and width in the attribute `image_size` or `img_size` of a layer."""
    sizes = (getattr(one, name, None) for one in model.modules() for name in ("image_size", "img_size"))
    size = next(filter(None, sizes), None)
    return (size, size) if isinstance(size, int) else (size[0], size[-1]) if size else None


def _shapes(twin: nn.Module, given: Tensor, failed: str | None) -> Iterator[Shape]:
    shape = tuple(given.shape)
    n, rest = (shape[0], shape[1:]) if len(shape) == 4 else (1, shape)
    convolution = next((one for one in twin.modules() if isinstance(one, nn.Conv2d)), None)
    c = convolution.in_channels if convolution is not None else rest[0] if len(rest) == 3 else 3
    sides = rest
    if len(rest) == 3:
        sides = rest[:2] if rest[2] in (1, 3, c) and rest[0] not in (1, 3, c) else rest[1:]
    elif len(rest) == 2 and {1, c} & {*rest}:  # one side and the channels
        sides = rest[1:] if rest[0] in (1, c) else rest[:1]
    yield (n, c, sides[0], sides[-1])
    if (stated := _stated_size(twin)) is not None:
        yield (n, c, *stated)
    layer = dict(twin.named_modules()).get(failed or "")
    if isinstance(layer, nn.Linear):
        for side in _sides_of(twin, layer, (n, c), given.dtype):
            yield (n, c, side, side)


def _sides_of(twin: nn.Module, layer: nn.Linear, start: Shape, dtype: torch.dtype) -> Iterator[int]:
    """Yield usual sides, then the smallest one, at which a linear layer gets its number of features, which grows
    with the side."""

    def features(side: int) -> int:
        got = []
        handle = layer.register_forward_pre_hook(lambda _, args: got.append(args[0].shape[-1]))
        _runs(twin, (*start, side, side), dtype)
        handle.remove()
        return got[0] if got else 0  # too small an image for an earlier layer

    low, high = 1, _MAX_SIZE
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if features(middle) >= layer.in_features else (middle + 1, high)
    for side in chain(_USUAL_SIZES, [low]):
        if side >= low and features(side) == layer.in_features:
            yield side


def _runs(twin: nn.Module, shape: Shape, dtype: torch.dtype) -> bool:
    try:
        with torch.no_grad():
            twin(torch.empty(shape, dtype=dtype, device="meta"))
    except Exception:  # the forward may raise anything for unsuitable inputs
        return False
    return True
