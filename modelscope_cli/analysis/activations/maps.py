"""Capture the outputs of the selected calls for one image as maps."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from modelscope_cli.analysis.activations.arranged import by_cells, by_shape
from modelscope_cli.analysis.activations.attention import NO_ATTENTION
from modelscope_cli.analysis.spatial.cells import Cells, Tracker
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.fetch import fetch
from modelscope_cli.hooks.layers import ChannelFinder, list_layers, tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.hooks.spec import Range, channels_of
from modelscope_cli.records.featuremaps import FeatureMap
from modelscope_cli.records.naming import block_of, counted, label_of, some
from modelscope_cli.records.run import Arguments


@dataclass(frozen=True, slots=True)
class ChannelChoice:
    """Which channels to show."""

    most: int = 64  # the maximum number of channels, evenly spread
    ranges: tuple[Range, ...] = ()  # exactly these channels, as inclusive ranges; empty for any

    def of(self, maps: Tensor) -> tuple[int, ...]:
        """Return the channels of `(C, H, W)` maps or a `(C,)` vector to show, in order."""
        if maps.ndim == 1 and not self.ranges:
            return tuple(range(len(maps)))  # a vector is one image, whatever its length
        n_channels = len(maps)
        if self.ranges:
            numbers = (
                number for first, last in self.ranges for number in range(first, min(last + 1, n_channels))
            )
            return tuple(dict.fromkeys(numbers))
        if n_channels <= self.most:
            return tuple(range(n_channels))
        return tuple(int(index) for index in torch.linspace(0, n_channels - 1, self.most).round())

    def missing(self, n_channels: int) -> str:
        """Say which requested channels an output with `n_channels` lacks; empty if none."""
        beyond = [str(last) for _, last in self.ranges if last >= n_channels]
        return f"no channel {some(beyond)}" if beyond else ""


EVENLY = ChannelChoice()


def choose_channels(channels: str | Sequence[int], most: int) -> ChannelChoice:
    text = channels if isinstance(channels, str) else ",".join(map(str, channels))
    if not text:
        return ChannelChoice(most)
    try:
        return ChannelChoice(ranges=channels_of(text))
    except ValueError as error:
        problem, suggestion, part = error.args
        hint = f"--channels {suggestion or '0'}"
        raise UsageError(f"--channels '{text}': '{part}' {problem}", hint) from None


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """One output of one call for the first image."""

    record: FeatureMap  # the row, without a file until it is drawn
    # A copy on its device, `(C, H, W)` maps or a `(C,)` vector; None where neither fits, see `record.problem`
    maps: Tensor | None
    n_broken: Tensor | None = None  # how many values are NaN or infinite, on its device; None if not counted


@dataclass(frozen=True, slots=True)
class _Caught:
    """A copied output, arranged into maps after the run."""

    record: FeatureMap
    tensor: Tensor
    channel_dim: int | None
    cells: Cells | None  # the positions of its elements; None if unknown
    is_spatial: bool  # whether anything before this call had positions in an image
    n_images: int  # number of images in `tensor`
    is_of_images: bool  # whether the first dimension of `tensor` is that of the images

    # Whether it equals the output before it, on its device; None where it cannot
    repeats: Tensor | None = None

    def after(self, other: "_Caught") -> "_Caught":
        """Return this with `repeats`, which is read after the run: a device would be waited for at every block."""
        one, two = self.tensor, other.tensor
        is_plain = one.layout is torch.strided is two.layout
        is_alike = is_plain and one.dtype == two.dtype and one.shape == two.shape and one.device == two.device
        return replace(self, repeats=(one == two).all()) if is_alike else self

    def exhibit(self) -> CapturedOutput:
        """Arrange it for the first image."""
        tensor, record = self.tensor, self.record
        if tensor.layout is not torch.strided or tensor.is_complex():
            return CapturedOutput(replace(record, problem="complex and sparse tensors cannot be drawn"), None)
        arranged = by_cells(tensor, self.cells, self.n_images) if self.cells is not None else None
        if arranged is None:
            problem = _why_not(tensor, self.channel_dim)
            if problem or self.channel_dim is None:
                return CapturedOutput(replace(record, problem=problem), None)
            arranged = by_shape(tensor[0], self.channel_dim - 1, self.is_spatial)
            if not self.is_of_images and len(tensor) > self.n_images:
                n_pieces = len(tensor) // self.n_images
                note = f"the first of {n_pieces} pieces that could not be assembled"
                arranged = replace(arranged, note=", ".join(filter(None, (note, arranged.note))))
            record = replace(record, shape=tuple(tensor.shape[1:]))
        elif self.is_of_images:
            record = replace(record, shape=tuple(tensor.shape[1:]))
        if arranged.maps is None:
            return CapturedOutput(replace(record, problem=arranged.note), None)
        record = replace(record, channels=len(arranged.maps), note=arranged.note)
        return CapturedOutput(record, arranged.maps)


class _Capturer(Observer):
    def __init__(self, tracker: Tracker, blocks: Container[str] | None) -> None:
        self.caught: list[_Caught] = []
        self._tracker = tracker
        self._blocks = blocks  # the calls that are captured although others are inside them; None for all
        self._channels = ChannelFinder()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        outputs = tensors_in(output)
        if self._blocks is not None and isinstance(module, _DropoutNd) and not module.training:
            return  # its output is that of the layer before
        channel_dims = [self._channels.find(module, tensor) for _, tensor in outputs]
        is_block = self._blocks is not None and not is_innermost
        if is_block and call.name not in (self._blocks or ()):
            return
        caught = [self._catch(call, *one, dim) for one, dim in zip(outputs, channel_dims, strict=True)]
        if is_block and self.caught and len(caught) == 1:
            caught = [caught[0].after(self.caught[-1])]
        self.caught += caught

    def found(self) -> list[_Caught]:
        """Return the outputs but for blocks that return what their last layer did."""
        flags = iter(fetch(one.repeats for one in self.caught if one.repeats is not None))
        return [one for one in self.caught if one.repeats is None or not next(flags)]

    def pass_by(self, module: nn.Module, output: Any) -> None:
        self._channels.see(module, output)

    def _catch(self, call: Call, path: str, tensor: Tensor, channel_dim: int | None) -> _Caught:
        record = FeatureMap(call.name, call.type, call.order, call.index, path, tuple(tensor.shape))
        places = self._tracker.find(tensor)
        cells = places.sides[0] if places is not None else None
        n_images, is_of_images = self._tracker.n_images, True
        if places is not None:
            is_of_images = tensor.ndim > 0 and len(tensor) == n_images
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        tensor = tensor.detach()
        if is_of_images and cells is not None and tensor.layout is torch.strided:
            tensor, cells, n_images = tensor[:1], cells.moved(lambda ids: ids[:1]), 1
        # Copied because the next layer may work in place; on the device because a copy to the CPU would block.
        tensor = tensor.clone()
        return _Caught(record, tensor, channel_dim, cells, self._tracker.is_spatial, n_images, is_of_images)


def _why_not(tensor: Tensor, channel_dim: int | None) -> str | None:
    if channel_dim is None:
        return "a single number or a bare list cannot be drawn"
    if channel_dim == 0:
        return "its first dimension is channels, not images"
    if not tensor.numel():
        return "it is empty"
    return None


def capture_maps(
    model: nn.Module,
    args: Arguments,
    selection: Selection,
    *,
    choice: ChannelChoice = EVENLY,
    interventions: Sequence[Intervention] = (),
) -> list[CapturedOutput]:
    """Run the model, up to the last selected call, and return the selected outputs in execution order.

    Where no layers are named, these are the outputs of the innermost calls, and after them those of blocks that
    compute more than their last layer, such as the sum of a residual block. With `interventions`, which change
    values on the way, the forward runs to its end.
    """
    tracker = Tracker()
    blocks = blocks_of(layer.name for layer, _ in list_layers(model)) if selection.is_innermost_only else None
    capturer = _Capturer(tracker, blocks)
    session = HookSession(
        model, [capturer], wanted=selection.wanted, names=selection.names, interventions=interventions
    )
    with session, tracker.follow(args):
        session.run(args)
    found = capturer.found()
    if blocks is None:
        found.sort(key=lambda caught: caught.record.order)
    return finished([replace(one.exhibit(), n_broken=_n_broken(one.tensor)) for one in found], choice)


def _n_broken(tensor: Tensor) -> Tensor | None:
    # Not of maps, in which places without a value are NaN.
    is_usual = tensor.is_floating_point() and tensor.itemsize > 1 and tensor.layout is torch.strided
    return (~tensor.isfinite()).sum() if is_usual else None


def blocks_of(layers: Iterable[str]) -> set[str]:
    """Return the blocks that layers are in, and the numbered stages that those are in."""
    blocks = {block_of(name) for name in layers}
    parts = [name.split(".") for name in blocks]
    stages = {".".join(part[:n]) for part in parts for n in range(len(part)) if part[n - 1][-1:].isdigit()}
    return (blocks | stages) - {""}


def finished(found: Sequence[CapturedOutput], choice: ChannelChoice) -> list[CapturedOutput]:
    """Return outputs with the channels to show; having none of these is a problem."""
    outputs = []
    ranges = value_ranges([one.maps for one in found])
    flat = fetch(_constant(one.maps) for one in found)
    broken = fetch(torch.zeros(()) if one.n_broken is None else one.n_broken for one in found)
    for exhibit, (low, high), is_flat, n in zip(found, ranges, flat, broken, strict=True):
        record, maps = exhibit.record, exhibit.maps
        if maps is not None:
            channels = choice.of(maps)
            problem = None if channels else f"it has no such channel, only 0 to {len(maps) - 1}"
            n_flat = int(is_flat[list(channels)].sum()) if len(is_flat) else 0
            grey = f"{n_flat} of {len(channels)} constant (grey)" if n_flat else ""
            missing = choice.missing(len(maps)) if channels else ""
            bad = f"{counted(int(n), 'value')} NaN or infinite" if n else ""
            record = replace(record, non_finite=int(n))
            note = ", ".join(filter(None, (bad, record.note, missing, grey)))
            record = replace(record, shown=channels, min=low, max=high, problem=problem, note=note)
        outputs.append(replace(exhibit, record=record))
    return outputs


def _constant(maps: Tensor | None) -> Tensor:
    """Return which of `(C, H, W)` maps have one finite value everywhere; empty for vectors and filters."""
    if maps is None or maps.ndim != 3 or not maps.numel():
        return torch.zeros(0, dtype=torch.bool)
    flat = maps.flatten(1)
    return (flat == flat[:, :1]).all(1) & flat[:, 0].isfinite()


def value_ranges(several: Sequence[Tensor | None]) -> list[tuple[float, float] | tuple[None, None]]:
    """Return the smallest and largest finite value of each tensor, `(None, None)` if there is none."""
    ends = fetch(
        torch.zeros(0) if one is None or not one.numel() else torch.stack(torch.aminmax(one.float()))
        for one in several
    )
    ranges: list[tuple[float, float] | tuple[None, None]] = []
    for one, pair in zip(several, ends, strict=True):
        if one is None or not pair.numel():
            ranges.append((None, None))
        elif pair.isfinite().all():
            ranges.append((float(pair[0]), float(pair[1])))
        else:
            finite = one[one.isfinite()].float()
            ranges.append((float(finite.amin()), float(finite.amax())) if finite.numel() else (None, None))
    return ranges


def nothing_to_draw(rows: Sequence[FeatureMap], never: Sequence[str], is_attention: bool) -> CannotRunError:
    """Return the error that says why no output can be drawn."""
    if rows:
        first = rows[0]
        message = f"no selected layer has an output that can be drawn; {label_of(first)}: {first.problem}"
    elif any(never):  # the model itself has no name
        message = f"no selected layer ran: {some(never)}"
    elif is_attention:
        message = NO_ATTENTION
    else:
        message = "no layer of the model outputs a tensor, so there is nothing to draw"
    return CannotRunError(message, "modelscope summary ...")
