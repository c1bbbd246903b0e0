"""`featuremaps`: keep the outputs of the selected calls for one image, as maps that can be looked at."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.channels import ChannelFinder
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.records.featuremaps import FeatureMap
from modelscope_cli.records.run import Arguments


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One output of one call for the first image, and what to show of it.

    Attributes:
        record: everything but the file, which whoever draws it adds.
        maps: a copy, on the device it was made on: `(C, H, W)` maps or a `(C,)` vector; None where neither
            fits, and then `record.problem` says why.
        part: what had to be chosen to get a picture: which frame, or that the class token was left out.
    """

    record: FeatureMap
    maps: Tensor | None
    part: str = ""


class _Capturer(Observer):
    def __init__(self, image_size: tuple[int, int] | None, is_innermost_only: bool) -> None:
        self.captured: list[tuple[FeatureMap, Tensor | None, str]] = []
        self._image_size = image_size
        self._is_innermost_only = is_innermost_only
        self._channels = ChannelFinder()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        outputs = tensors_in(output)
        channel_dims = [self._channels.find(module, tensor) for _, tensor in outputs]
        if self._is_innermost_only and not is_innermost:
            return
        for (path, tensor), channel_dim in zip(outputs, channel_dims, strict=True):
            self.captured.append(self._capture(call, path, tensor, channel_dim))

    def pass_by(self, module: nn.Module, output: Any) -> None:
        self._channels.see(module, output)

    def _capture(
        self, call: Call, path: str, tensor: Tensor, channel_dim: int | None
    ) -> tuple[FeatureMap, Tensor | None, str]:
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        record = FeatureMap(call.name, call.type, call.order, call.index, path, tuple(tensor.shape))
        problem = _why_not(tensor, channel_dim)
        if problem or channel_dim is None:
            return replace(record, problem=problem), None, ""
        image = tensor.detach()[0]
        maps, part = as_maps(image, channel_dim - 1, self._image_size)
        # A copy, because the next layer may work in place; still on the device, because a copy to the CPU
        # would wait for it.
        return replace(record, shape=tuple(image.shape), channels=len(maps)), maps.clone(), part


def _why_not(tensor: Tensor, channel_dim: int | None) -> str | None:
    if tensor.layout is not torch.strided or tensor.is_complex():
        return "complex and sparse tensors have no picture"
    if channel_dim is None:
        return "a single number or a bare list has no picture"
    if channel_dim == 0:
        return "its first dimension are channels, not images"
    if not tensor.numel():
        return "it is empty"
    return None


def as_maps(image: Tensor, channel_dim: int, image_size: tuple[int, int] | None) -> tuple[Tensor, str]:
    """Arrange one image's output as `(C, H, W)` maps, or as a `(C,)` vector where it has no places.

    Tokens `(L, C)` become a map where L, with or without one class token, is a whole number of rows in the
    proportions of the picture, `image_size = (height, width)`, or else a square.

    Returns:
        The maps, and in words what had to be left out.
    """
    channels_first = image.movedim(channel_dim, 0)
    places = channels_first.shape[1:]
    if not places or math.prod(places) == 1:
        return channels_first.reshape(-1), ""
    if len(places) == 2:
        return channels_first, ""
    if len(places) == 1:
        return _tokens_as_maps(channels_first, image_size)
    if len(places) == 3:
        frame = places[0] // 2
        return channels_first[:, frame], f"frame {frame + 1} of {places[0]}"
    return channels_first.flatten(2), "further dimensions side by side"


def _tokens_as_maps(tokens: Tensor, image_size: tuple[int, int] | None) -> tuple[Tensor, str]:
    n_tokens = tokens.shape[1]
    for n_extra in (0, 1):
        rows = _rows_of(n_tokens - n_extra, image_size)
        if rows:
            maps = tokens[:, n_extra:].unflatten(1, (rows, -1))
            return maps, "without the class token" if n_extra else ""
    return tokens[:, None, :], "tokens in a row"


def _rows_of(n_places: int, image_size: tuple[int, int] | None) -> int:
    """Return the number of rows into which `n_places` fall in the picture's proportions; 0 for none."""
    for height, width in filter(None, (image_size, (1, 1))):
        rows = math.isqrt(n_places * height // width)
        if rows and n_places % rows == 0 and rows * width == n_places // rows * height:
            return rows
    return 0


def capture_maps(
    model: nn.Module,
    args: Arguments,
    selection: Selection,
    *,
    image_size: tuple[int, int] | None = None,
    n_channels: int = 64,
    is_top: bool = False,
    interventions: Sequence[Intervention] = (),
) -> list[Exhibit]:
    """Run the model once and return the selected outputs in execution order; cut short after the last.

    Args:
        image_size: height and width of the picture, for the proportions of token maps.
        n_channels: show at most this many, evenly spread or, with `is_top`, the most active.
        interventions: change what flows; then the forward is not cut short.

    Raises:
        ForwardError: the model raised (exit 4).
    """
    capturer = _Capturer(image_size, is_innermost_only=selection.is_innermost_only)
    with HookSession(
        model, [capturer], wanted=selection.wanted, names=selection.names, interventions=interventions
    ) as session:
        session.run(args)
    exhibits = []
    for record, maps, part in sorted(capturer.captured, key=lambda captured: captured[0].order):
        if maps is not None:
            low, high = value_range(maps)
            shown = choose_channels(maps, n_channels, is_top)
            exhibits.append(Exhibit(replace(record, shown=shown, min=low, max=high), maps, part))
        else:
            exhibits.append(Exhibit(record, None))
    return exhibits


def choose_channels(maps: Tensor, n: int, is_top: bool) -> tuple[int, ...]:
    """Choose at most `n` of the C channels: evenly spread, or the ones with the largest mean |activation|."""
    n_channels = len(maps)
    if maps.ndim == 1 or (n_channels <= n and not is_top):
        return tuple(range(n_channels))  # a vector is one picture whatever its length
    if not is_top:
        return tuple(int(index) for index in torch.linspace(0, n_channels - 1, n).round())
    strength = torch.nan_to_num(maps.float()).abs().flatten(1).mean(1)
    return tuple(strength.topk(min(n, n_channels)).indices.tolist())


def value_range(maps: Tensor) -> tuple[float, float] | tuple[None, None]:
    """Return the smallest and largest finite value, None twice where there is none."""
    if maps.numel():
        low, high = torch.aminmax(maps.float())
        if low.isfinite() and high.isfinite():
            return low.item(), high.item()
    finite = maps[maps.isfinite()].float()
    return (finite.amin().item(), finite.amax().item()) if finite.numel() else (None, None)
