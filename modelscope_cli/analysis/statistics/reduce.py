"""Turn one tensor into `Moments`, at hook time.

Two ways to the same numbers. On the CPU, reading memory is the cost, so the tensor is walked once, in blocks
that stay in cache, with branches on what was found. On an accelerator a branch on a value would wait for the
device, so everything is computed without any and stays there until the pass is over.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.quantiles import trailing_digits
from modelscope_cli.analysis.statistics.reduce_cpu import deviation_on_cpu, reduce_on_cpu
from modelscope_cli.analysis.statistics.reduce_device import deviation_on_device, reduce_on_device


def reduce_tensor(x: Tensor, channel_dim: int | None, wanted: Wanted) -> Callable[[], Moments]:
    """Start to reduce `x`; call the result once the pass is over to have the numbers.

    Args:
        x: any shape, dtype and device; integers and booleans count as numbers, quantized ones are unpacked.
        channel_dim: which dimension holds the channels, None where there are none.

    Raises:
        TypeError: complex, sparse or meta tensors have no such statistics.
    """
    if x.is_complex() or x.is_sparse or x.is_meta or x.is_nested or x.layout is not torch.strided:
        raise TypeError(f"no statistics of a {_kind(x)} tensor")
    x = _unpacked(x)
    if x.device.type == "cpu":
        moments = reduce_on_cpu(x, channel_dim, wanted)
        return lambda: moments
    return reduce_on_device(x, channel_dim, wanted)


def abs_deviation(x: Tensor, centre: float) -> float | Tensor:
    """Return the sum of |x - centre| over the finite values of `x`; on an accelerator, still there."""
    x = _unpacked(x)
    return deviation_on_cpu(x, centre) if x.device.type == "cpu" else deviation_on_device(x, centre)


def trailing_counts(x: Tensor, buckets: Sequence[int]) -> dict[int, Tensor]:
    """Return what `trailing_digits` does of any tensor; on an accelerator, still there."""
    return trailing_digits(_unpacked(x), buckets)


def _unpacked(x: Tensor) -> Tensor:
    return x.detach().dequantize() if x.is_quantized else x.detach()


def _kind(x: Tensor) -> str:
    for kind in ("complex", "nested", "meta"):
        if getattr(x, f"is_{kind}")() if kind == "complex" else getattr(x, f"is_{kind}"):
            return kind
    return "sparse"
