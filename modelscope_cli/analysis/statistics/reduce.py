"""Turn one tensor into `Moments`, at hook time.

Two ways to the same numbers. On the CPU, reading memory is the cost, so the tensor is walked once, in blocks
that stay in cache, with branches on the values. On an accelerator a branch on a value would wait for the
device, so everything is computed without any and stays there until the pass is over.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import MIN_EXPONENT, N_BINS, Histogram, Moments, Wanted, grid
from modelscope_cli.analysis.statistics.quantiles import ValueCounts, leading_digits, trailing_digits
from modelscope_cli.analysis.statistics.reduce_cpu import (
    deviation_on_cpu,
    reduce_on_cpu,
    rounded,
    zeros_by_channel,
)


def reduce_tensor(x: Tensor, channel_dim: int | None, wanted: Wanted) -> Callable[[], Moments]:
    """Start to reduce `x`; call the result once the pass is over to have the numbers.

    Args:
        x: any shape, dtype and device; integers and booleans count as numbers, quantized ones are unpacked.
        channel_dim: which dimension holds the channels, None where there are none.
    """
    if x.is_complex() or x.is_sparse or x.is_meta or x.is_nested or x.layout is not torch.strided:
        raise TypeError(f"no statistics of a {_kind(x)} tensor")
    x = _unpacked(x)
    if x.device.type == "cpu":
        moments = reduce_on_cpu(x, channel_dim, wanted)
        return lambda: moments
    return reduce_on_device(x, channel_dim, wanted)


def abs_deviation(x: Tensor, centre: float) -> float | Tensor:
    """Return the sum of |x - centre| over the finite values of `x`; it stays on an accelerator."""
    x = _unpacked(x)
    return deviation_on_cpu(x, centre) if x.device.type == "cpu" else deviation_on_device(x, centre)


def trailing_counts(x: Tensor, buckets: Sequence[int]) -> dict[int, Tensor]:
    """Return the `trailing_digits` of any tensor; they stay on an accelerator."""
    return trailing_digits(_unpacked(x), buckets)


def _unpacked(x: Tensor) -> Tensor:
    return x.detach().dequantize() if x.is_quantized else x.detach()


def _kind(x: Tensor) -> str:
    for kind in ("complex", "nested", "meta"):
        if getattr(x, f"is_{kind}")() if kind == "complex" else getattr(x, f"is_{kind}"):
            return kind
    return "sparse"


def reduce_on_device(x: Tensor, channel_dim: int | None, wanted: Wanted) -> Callable[[], Moments]:
    """Start to reduce a dense tensor; the numbers are copied when the result is called."""
    wide = _wide(x)
    flat = x.reshape(-1)
    is_finite = flat.isfinite()
    n = is_finite.sum()
    y = torch.where(is_finite, flat, 0).to(wide)
    mean = y.sum() / n.clamp_min(1)
    deviation = torch.where(is_finite, y - mean, 0)
    low = torch.where(is_finite, y, math.inf).amin() if flat.numel() else y.new_tensor(math.inf)
    high = torch.where(is_finite, y, -math.inf).amax() if flat.numel() else y.new_tensor(-math.inf)
    figures = [n, mean, deviation.square().sum(), low, high, flat.isnan().sum(), flat.isinf().sum()]
    figures.append(deviation.abs().sum())
    figures.append((is_finite & (flat == 0)).sum())
    figures.append((is_finite & (y.abs() < rounded(wanted.threshold, flat))).sum())
    packed = torch.stack([figure.to(wide) for figure in figures])
    alive = None
    if wanted.channels and channel_dim is not None:
        alive = (x != 0).transpose(0, channel_dim).flatten(1).any(1)
    zeros = None
    if wanted.channel_zeros and channel_dim is not None:
        zeros = zeros_by_channel(x, channel_dim)
    histogram = _histogram_on_device(y, is_finite, low, high) if wanted.histogram and flat.numel() else None
    leading = leading_digits(x) if wanted.quantiles else None

    def finish() -> Moments:
        n, mean, m2, low, high, n_nan, n_inf, deviation, n_zero, n_near = packed.tolist()
        return Moments(
            n=int(n),
            mean=mean,
            m2=m2,
            low=low,
            high=high,
            n_nan=int(n_nan),
            n_inf=int(n_inf),
            abs_deviation=deviation if wanted.mad else None,
            n_zero=int(n_zero) if wanted.zero else None,
            n_near_zero=int(n_near) if wanted.near_zero else None,
            alive=tuple(alive.tolist()) if alive is not None else None,
            histogram=_settle(low, high, histogram) if histogram and n else None,
            channel_zeros=tuple(zeros.tolist()) if zeros is not None else None,
            leading=ValueCounts.of(leading) if leading is not None else None,
        )

    return finish


def deviation_on_device(x: Tensor, centre: float) -> Tensor:
    """Return the sum of |x - centre| over the finite values, still on the device."""
    x = x.to(_wide(x))
    return torch.where(x.isfinite(), x - centre, 0.0).abs().sum()


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64  # Metal has no float64


def _histogram_on_device(y: Tensor, is_finite: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Count on a grid twice as fine as needed at most; returns `(exponent, counts of 2 * N_BINS + 1 bins)`."""
    exponent = torch.frexp(high - low).exponent - 7
    exponent = torch.where(high > low, exponent, MIN_EXPONENT).clamp_min(
        MIN_EXPONENT if y.dtype == torch.float64 else -120  # 2**120 is about as much as float32 takes
    )
    scale = -exponent.to(y.dtype)  # a floating point one, else ldexp takes its power of two in float32
    bins = torch.ldexp(y, scale).floor() - torch.ldexp(low, scale).floor()
    bins = torch.where(is_finite, bins, 0).clamp(0, 2 * N_BINS).to(torch.int64)
    counts = torch.zeros(2 * N_BINS + 1, dtype=torch.int64, device=y.device)
    return exponent, counts.scatter_add_(0, bins, is_finite.to(torch.int64))


def _settle(low: float, high: float, counted: tuple[Tensor, Tensor]) -> Histogram:
    exponent, counts = int(counted[0]), counted[1].tolist()
    if low == high:
        finest, first = grid(low, high)
        return Histogram(low, high, finest, first, (sum(counts),))
    first, last = (math.floor(math.ldexp(edge, -exponent)) for edge in (low, high))
    fine = Histogram(low, high, exponent, first, tuple(counts[: last - first + 1]))
    return fine.merge(Histogram(low, high, exponent, first, ()))
