"""Which input entries each output entry of a sliding operator reads: kernels, windows, resampling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Taps:
    """Along one dimension: `(entries of the output, entries read at most)` int64, and which of those exist."""

    index: Tensor
    is_there: Tensor


def taps_of(name: str, arguments: dict[str, Any], before: Sequence[int], after: Sequence[int]) -> list[Taps]:
    """Return the taps along each of the sliding dimensions.

    Args:
        name: of an operator of torch that slides, without its overload.
        arguments: of the call, by name.
        before, after: sizes of the sliding dimensions of the input and of the output.
    """
    if "adaptive" in name:
        return [_adaptive_taps(n, m) for n, m in zip(before, after, strict=True)]
    if "upsample" in name:
        return [_resampling_taps(name, arguments, n, m) for n, m in zip(before, after, strict=True)]
    if "convolution" not in name and "pool" not in name:
        raise ValueError(name)
    sides = arguments["weight"].shape[2:] if "weight" in arguments else arguments["kernel_size"]
    kernel = _each(sides, before)
    stride = _each(arguments.get("stride") or kernel, before)
    padding = _each(arguments.get("padding", 0), before)
    dilation = _each(arguments.get("dilation", 1), before)
    make = _transposed_taps if arguments.get("transposed") else _sliding_taps
    return [
        make(n, m, k, s, p, d)
        for n, m, k, s, p, d in zip(before, after, kernel, stride, padding, dilation, strict=True)
    ]


def _each(value: Any, sizes: Sequence[int]) -> list[int]:
    values = list(value) if isinstance(value, list | tuple | torch.Size) else [value]
    return values * len(sizes) if len(values) == 1 else values


def _within(index: Tensor, n: int) -> Taps:
    return Taps(index.clamp(0, n - 1), (index >= 0) & (index < n))


def _sliding_taps(n: int, m: int, kernel: int, stride: int, padding: int, dilation: int) -> Taps:
    """Entry i of the output reads i * stride - padding + k * dilation for every k of the kernel."""
    start = torch.arange(m)[:, None] * stride - padding
    return _within(start + torch.arange(kernel) * dilation, n)


def _transposed_taps(n: int, m: int, kernel: int, stride: int, padding: int, dilation: int) -> Taps:
    """Transposed: entry o is written to by every i with o = i * stride - padding + k * dilation."""
    offset = torch.arange(m)[:, None] + padding - torch.arange(kernel) * dilation
    taps = _within(torch.div(offset, stride, rounding_mode="floor"), n)
    return Taps(taps.index, taps.is_there & (offset % stride == 0))


def _adaptive_taps(n: int, m: int) -> Taps:
    """Entry i of an adaptive pooling reads from floor(i n / m) to before ceil((i + 1) n / m)."""
    start = torch.arange(m) * n // m
    end = -(-(torch.arange(1, m + 1) * n) // m)
    index = start[:, None] + torch.arange(int((end - start).max()))
    return Taps(index.clamp(0, n - 1), index < end[:, None])


def _resampling_taps(name: str, arguments: dict[str, Any], n: int, m: int) -> Taps:
    entries = torch.arange(m, dtype=torch.float64)
    if "nearest" in name:
        return _within((((entries + 0.5 * ("exact" in name)) * n / m).floor().long())[:, None], n)
    middle = (entries + 0.5) * n / m - 0.5
    if arguments.get("align_corners"):
        middle = entries * (n - 1) / max(m - 1, 1)
    else:
        middle = middle.clamp(0, n - 1) if "cubic" not in name else middle
    # A triangle reaches 1 to each side, a cubic 2; made wider where antialiasing is asked for.
    reach = (2 if "cubic" in name else 1) * (max(n / m, 1.0) if name.endswith("_aa") else 1.0)
    first = (middle - reach).ceil().long()
    index = first[:, None] + torch.arange(math.ceil(2 * reach) + 1)
    is_near = (index - middle[:, None]).abs() < reach - 1e-9
    # Outside entries are clamped to the edge.
    return Taps(index.clamp(0, n - 1), is_near)
