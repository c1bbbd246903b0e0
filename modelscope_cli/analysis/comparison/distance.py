"""Distance of two tensors: sums over chunks and batches, and figures computed from them."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.devices import widest_float
from modelscope_cli.records.naming import dtype_name

# Number of values widened to float64 at a time; fits into a processor's cache.
_CHUNK_CPU, _CHUNK_DEVICE = 1 << 16, 1 << 24
_N, _NUMEL, _DIFFERING, _NONFINITE, _ABS, _DD, _AA, _BB, _AB, _MAX = range(10)


@dataclass(frozen=True, slots=True)
class Distance:
    """The figures of `records.Difference`, by the same names."""

    max_abs: float
    mean_abs: float
    rel_l2: float
    cosine: float | None
    differing: int
    numel: int
    nonfinite: int

    def exceeds(self, tolerance: float) -> bool:
        """Check whether b differs from a by more than the tolerance; with 0, in any bit."""
        if self.nonfinite or not tolerance:
            return bool(self.differing)
        return self.rel_l2 > tolerance

    def figures(self) -> dict[str, Any]:
        """Return the fields of a `records.Difference`; no distance where some value is finite on one side only."""
        counts = {"differing": self.differing, "numel": self.numel, "nonfinite": self.nonfinite}
        return counts if self.nonfinite else asdict(self)


def sum_up(a: Tensor, b: Tensor) -> Tensor:
    """Return the sums over two tensors of one shape, `(10,)`, on the device of `a`, without synchronising it.

    Values are widened to float64 (float32 where a device has none) a chunk at a time; complex values count as
    pairs, quantized ones are dequantized.
    """
    a, b = plain_values(a), plain_values(b).to(a.device)
    wide = widest_float(a.device)
    size = _CHUNK_CPU if a.device.type == "cpu" else _CHUNK_DEVICE
    total = torch.zeros(10, dtype=wide, device=a.device)
    for x, y in zip(a.reshape(-1).split(size), b.reshape(-1).split(size), strict=True):
        total = merge(total, _sum_chunk(x, y, wide))
    return total


def plain_values(tensor: Tensor) -> Tensor:
    """Return the values as a dense tensor of numbers; complex ones as pairs."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_floating_point() and tensor.itemsize == 1:  # which torch compares with no other dtype
        tensor = tensor.float()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def place_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _sum_chunk(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    is_equal = (a == b) | (a.isnan() & b.isnan())
    x, y = a.to(wide), b.to(wide)
    is_finite = x.isfinite() & y.isfinite()
    x, y = torch.where(is_finite, x, 0), torch.where(is_finite, y, 0)
    d = x - y
    sums = (
        is_finite.sum(),
        d.new_full((), d.numel()),  # without asking the device
        (~is_equal).sum(),
        (~is_equal & ~is_finite).sum(),
        d.abs().sum(),
        *(d.dot(d), x.dot(x), y.dot(y), x.dot(y)),
        d.abs().amax() if d.numel() else d.sum(),
    )
    return torch.stack([value.to(wide) for value in sums])


def merge(sums: Tensor, other: Tensor) -> Tensor:
    """Return the sums over the values of both."""
    total = sums + other
    total[_MAX] = torch.maximum(sums[_MAX], other[_MAX])
    return total


def to_distance(sums: Tensor) -> Distance:
    """Compute the figures from the sums; waits for an accelerator."""
    values = sums.tolist()
    dd, aa, bb = values[_DD], values[_AA], values[_BB]
    rel_l2 = math.sqrt(dd) / math.sqrt(aa) if aa else (math.inf if dd else 0.0)
    cosine = 1.0 if not dd else None
    if dd and aa and bb:
        cosine = max(-1.0, min(1.0, values[_AB] / math.sqrt(aa) / math.sqrt(bb)))
    return Distance(
        max_abs=values[_MAX],
        mean_abs=values[_ABS] / max(values[_N], 1),
        rel_l2=rel_l2,
        cosine=cosine,
        differing=int(values[_DIFFERING]),
        numel=int(values[_NUMEL]),
        nonfinite=int(values[_NONFINITE]),
    )


def traits(a: Tensor | None, b: Tensor | None) -> dict[str, Any]:
    """Return the shapes and dtypes for a `records.Difference`; None for a missing tensor."""
    return {
        "shape": None if a is None else tuple(a.shape),
        "b_shape": None if b is None else tuple(b.shape),
        "dtype": None if a is None else dtype_name(a.dtype),
        "b_dtype": None if b is None else dtype_name(b.dtype),
    }
