"""Turn one tensor into `Moments`, at hook time.

Two ways to the same numbers. On the CPU, reading memory is the cost, so the tensor is walked once, in blocks
that stay in cache, with branches on the values. On an accelerator a branch on a value would wait for the
device, so everything is computed without any and stays there until the pass is over.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import MIN_EXPONENT, N_BINS, Histogram, Moments, Wanted, grid
from modelscope_cli.analysis.statistics.quantiles import (
    ValueCounts,
    even_sample,
    in_memory_order,
    value_counts,
)
from modelscope_cli.devices import widest_float
from modelscope_cli.hooks.fetch import Deferred

# Elements a chunk holds: 1 MB of float32 stays in cache, and a call is still long compared to its overhead.
CHUNK = 1 << 18
# Elements summed in float32 before float64 takes over; the error of so short a sum is below 1e-6.
ROW = 1 << 12
# Rows shorter than this cost more to begin than to sum.
MIN_ROW = 256
# A tensor of more elements than this gives its histogram from an even sample of at least SAMPLE of them.
HISTOGRAM_EXACT = 1 << 18
HISTOGRAM_SAMPLE = 1 << 15
_LANES = 4
# A tensor of at most this many elements is reduced whole in float64: blocks cost more to begin than to sum.
WHOLE_UP_TO = 1 << 14
# Above this ratio of mean square to variance, E[x^2] - E[x]^2 in float32 would lose more than 1e-5.
CANCELLATION = 20.0


def _reduce_on_cpu(x: Tensor, channel_dim: int | None, wanted: Wanted) -> Moments:
    """Return the moments of a dense tensor of any dtype; see `reduce_tensor`."""
    is_whole = not wanted.quantiles and 0 < x.numel() <= WHOLE_UP_TO
    if is_whole and x.dtype == torch.float32 and (short := reduce_short([x], [channel_dim], wanted)[0]):
        return short
    values = ValueCounts.of(value_counts(x)) if wanted.quantiles else None
    x = x.to(_exact(x))
    flat = in_memory_order(x)
    n_nan = n_inf = 0
    # Rows that hold one channel of one image show dead channels without a further pass.
    places = math.prod(x.shape[2:])
    is_by_channel = channel_dim == 1 and x.is_contiguous() and places >= MIN_ROW
    scan = _scan(flat, wanted, places if is_by_channel else ROW)
    # Float32 squares overflow above 1e19 and vanish below 1e-19; such rare tensors take float64.
    is_tiny = 0 < max(abs(scan.low), abs(scan.high)) < 1e-15
    is_non_finite = not math.isfinite(scan.total + scan.squares)
    if flat.numel() and (is_tiny or is_non_finite):
        n_nan, n_inf = int(flat.isnan().sum()), int(flat.isinf().sum())
        flat = flat[flat.isfinite()].to(torch.float64)
        scan = _scan(flat, wanted)
        is_by_channel = False
    n = flat.numel()
    mean = scan.total / n if n else 0.0
    m2 = scan.squares - n * mean * mean
    if scan.squares > CANCELLATION * max(m2, 0.0):
        mean, m2 = _around(flat, mean)
    return Moments(
        n=n,
        mean=mean,
        m2=max(m2, 0.0),
        low=scan.low,
        high=scan.high,
        n_nan=n_nan,
        n_inf=n_inf,
        n_zero=scan.n_zero if wanted.zero else None,
        n_near_zero=scan.n_near_zero if wanted.near_zero else None,
        alive=_alive(x, channel_dim, scan, is_by_channel) if wanted.channels else None,
        histogram=_histogram(flat, scan.low, scan.high) if wanted.histogram and n else None,
        values=values,
    )


def reduce_short(
    tensors: Sequence[Tensor], channel_dims: Sequence[int | None], wanted: Wanted
) -> list[Moments | None]:
    """Return the moments of float32 tensors of one size, `WHOLE_UP_TO` at most; None for one that is not finite."""
    values = np.stack([x.numpy().reshape(-1) for x in tensors])
    nothing = [0] * len(values)
    with np.errstate(invalid="ignore", over="ignore"):
        lows, highs = values.min(1).tolist(), values.max(1).tolist()
        wide = values.astype(np.float64)
        means = wide.sum(1) / values.shape[1]
        wide -= means[:, None]
        squares = np.einsum("ij,ij->i", wide, wide)
    has_zeros = (wanted.zero or wanted.channels) and min(lows) <= 0 <= max(highs)
    n_zeros = (values == 0).sum(1) if has_zeros else nothing
    n_near = (np.abs(values) < np.float32(wanted.threshold)).sum(1) if wanted.near_zero else nothing
    return [
        Moments(
            n=values.shape[1],
            mean=float(means[i]),
            m2=float(squares[i]),
            low=low,
            high=high,
            n_zero=int(n_zeros[i]) if wanted.zero else None,
            n_near_zero=int(n_near[i]) if wanted.near_zero else None,
            alive=_alive(x, dim, _Scan(n_zero=int(n_zeros[i])), False) if wanted.channels else None,
            histogram=_histogram(x.reshape(-1), low, high) if wanted.histogram else None,
        )
        if math.isfinite(low + high)
        else None
        for i, (x, dim, low, high) in enumerate(zip(tensors, channel_dims, lows, highs, strict=True))
    ]


def _chunks(flat: Tensor, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
    """Yield at most `CHUNK` elements at a time as floating point numbers that hold the values exactly."""
    for chunk in torch.split(flat, CHUNK):
        yield chunk.to(dtype or _exact(flat))


def _exact(x: Tensor) -> torch.dtype:
    """The quickest floating point type that holds every value of `x`."""
    is_small = x.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8)
    return torch.float32 if is_small else torch.float64


def _blocks(flat: Tensor, row: int = ROW) -> list[Tensor]:
    """Cut a vector into blocks of about `CHUNK` elements, each of rows of `row`; the rest is one short row.
    Rows are summed in float32, which is quick; `_add_up` then adds the rows in float64, which is exact."""
    whole = flat.numel() - flat.numel() % row
    blocks = list(torch.split(flat[:whole].view(-1, row), max(CHUNK // row, 1))) if whole else []
    return [*blocks, flat[whole:].view(1, -1)] if whole < flat.numel() else blocks


def _add_up(sums: list[Tensor]) -> float:
    return torch.cat(sums).sum(dtype=torch.float64).item() if sums else 0.0


@dataclass(frozen=True, slots=True)
class _Scan:
    """What one walk over a vector gives; `norms` of its rows, in order."""

    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    n_zero: int = 0
    n_near_zero: int = 0
    norms: Tensor | None = None


def _scan(flat: Tensor, wanted: Wanted, row: int = ROW) -> _Scan:
    """Walk over a vector once, everything that needs no mean done on a chunk while it is in the cache."""
    if not flat.numel():
        return _Scan()
    edges, sums, norms = [], [], []
    n_zero = n_near_zero = 0
    for block in _blocks(flat, row):
        sums.append(block.sum(1))
        norms.append(torch.linalg.vector_norm(block, dim=1))
        low, high = _extremes(block)
        edges.append((low, high))
        if (wanted.zero or wanted.channels) and low <= 0 <= high:
            n_zero += _count_zeros(block)
        if wanted.near_zero and low < wanted.threshold and high > -wanted.threshold:
            n_near_zero += _count_below(block, wanted.threshold, is_negative=low < 0)
    all_norms = torch.cat(norms)
    is_number = not any(math.isnan(low) for low, _ in edges)  # the extremes of a NaN are NaN twice
    return _Scan(
        low=min(low for low, _ in edges) if is_number else math.nan,
        high=max(high for _, high in edges) if is_number else math.nan,
        total=_add_up(sums),
        squares=all_norms.to(torch.float64).square().sum().item(),
        n_zero=n_zero,
        n_near_zero=n_near_zero,
        norms=all_norms,
    )


def _around(flat: Tensor, centre: float) -> tuple[float, float]:
    """Return mean and sum of squared deviations, by way of deviations from a centre near the mean: those are
    small numbers, nothing cancels, and how far the centre is off comes out with them."""
    centre = rounded(centre, flat)
    first = second = 0.0
    for chunk in _chunks(flat):
        deviation = chunk - centre
        first += deviation.sum(dtype=torch.float64).item()
        second += deviation.to(torch.float64).square_().sum().item()
    return centre + first / flat.numel(), second - first * first / flat.numel()


def rounded(centre: float, flat: Tensor) -> float:
    """Return `centre` as arithmetic with the elements of `flat` takes it."""
    return torch.tensor(centre, dtype=_exact(flat)).item()


def _alive(x: Tensor, channel_dim: int | None, scan: _Scan, is_by_channel: bool) -> tuple[bool, ...] | None:
    if channel_dim is None:
        return None
    n_channels = x.shape[channel_dim]
    if not x.numel():
        return (False,) * n_channels
    if scan.n_zero * n_channels < x.numel():
        return (True,) * n_channels  # too few zeros to fill one channel
    if is_by_channel and scan.norms is not None:
        is_alive = (scan.norms.view(-1, n_channels) != 0).any(0)
        # The norm of numbers below 1e-22 is zero as well, so dead channels are checked.
        for channel in (~is_alive).nonzero().flatten().tolist():
            is_alive[channel] = x[:, channel].any()
        return tuple(is_alive.tolist())
    # Along the last dimensions first: reducing over contiguous memory is many times quicker.
    groups = x.flatten(channel_dim + 1) if channel_dim < x.ndim - 1 else x.unsqueeze(-1)
    is_filled = (groups.amax(-1) != 0) | (groups.amin(-1) != 0)  # NaN and infinite values are not zero either
    return tuple(is_filled.movedim(channel_dim, 0).reshape(n_channels, -1).any(1).tolist())


def _histogram(flat: Tensor, low: float, high: float) -> Histogram:
    n = flat.numel()
    if low == high:
        exponent, first = grid(low, high)
        return Histogram(low, high, exponent, first, (n,))
    values, step = even_sample(flat, HISTOGRAM_SAMPLE) if n > HISTOGRAM_EXACT else (flat, 1)
    exponent, first = grid(low, high)
    counts = np.zeros(_LANES * N_BINS, np.int64)
    for chunk in _chunks(values, torch.float64 if exponent < -100 else None):
        # Scaling by a power of two, rounding down and subtracting an integer are exact: so is every edge.
        scaled = torch.mul(chunk, 2.0**-exponent, out=_room(chunk))
        bins = torch.from_numpy(scaled.floor_().sub_(float(first)).numpy().astype(np.uint8))
        counts += torch.bincount(bins.add_(_lanes()[: len(bins)]), minlength=_LANES * N_BINS).numpy()
    n_bins = math.floor(math.ldexp(high, -exponent)) - first + 1
    # Each sampled value stands for `step` of them, so that it weighs as much as in a batch counted in full.
    summed = counts.reshape(_LANES, N_BINS).sum(0) * step
    return Histogram(low, high, exponent, first, _within(summed.tolist(), n_bins), step > 1)


def _within(counts: list[int], n_bins: int) -> tuple[int, ...]:
    # A largest value of -1.4e-45 is scaled to -0, which is one bin above its own: it counts in the last.
    return *counts[: n_bins - 1], sum(counts[n_bins - 1 :])


@cache
def _lanes() -> Tensor:
    """Return what to add to the bins of a chunk so that neighbours, often equal, count in different rows:
    adding to one counter twice in a row waits for the first to be done."""
    return torch.arange(CHUNK).remainder_(_LANES).mul_(N_BINS).to(torch.uint8)


class _Memory(threading.local):
    """Room for one chunk, kept from tensor to tensor: fresh memory costs more than the arithmetic on it."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.numbers = torch.empty(CHUNK, dtype=torch.float64)
        self.flags = np.empty(CHUNK, np.bool_)


_MEMORY = _Memory()


def _room(block: Tensor) -> Tensor:
    """Return memory for as many numbers as `block` has, in its shape."""
    n = block.numel()
    return _MEMORY.numbers.view(block.dtype)[:n].view(block.shape) if n <= CHUNK else torch.empty_like(block)


def _is_for_numpy() -> bool:
    return torch.get_num_threads() == 1


def _extremes(block: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest value; NaN twice where there is one."""
    if _is_for_numpy():
        values = block.numpy()
        with np.errstate(invalid="ignore"):
            return values.min().item(), values.max().item()
    low, high = torch.aminmax(block)
    return low.item(), high.item()


def _holding(compare: np.ufunc, block: Tensor, value: float) -> int:
    """Return for how many values a comparison with `value`, rounded to their type, holds."""
    values = block.numpy().reshape(-1)
    flags = _MEMORY.flags[: values.size] if values.size <= CHUNK else None
    return int(np.count_nonzero(compare(values, values.dtype.type(value), out=flags)))


def _count_zeros(block: Tensor) -> int:
    """Return how many values are zero, of either sign."""
    return _holding(np.equal, block, 0) if _is_for_numpy() else _count(torch.eq(block, 0, out=_room(block)))


def _count_below(block: Tensor, threshold: float, *, is_negative: bool) -> int:
    """Return how many |x| are below `threshold`, which is rounded to the type of the values."""
    if _is_for_numpy():
        n_low = _holding(np.less_equal, block, -threshold) if is_negative else 0
        return _holding(np.less, block, threshold) - n_low
    room = _room(block)
    return _count(torch.lt(torch.abs(block, out=room) if is_negative else block, threshold, out=room))


def _count(flags: Tensor) -> int:
    # Flags are written as float ones and zeros: exact up to 2**24 a row, and far quicker to count than booleans.
    return round(flags.sum(-1).sum(dtype=torch.float64).item())


def reduce_tensor(x: Tensor, channel_dim: int | None, wanted: Wanted) -> Deferred[Moments]:
    """Start to reduce `x`; finish the result once the pass is over to have the numbers.

    Args:
        x: any shape, dtype and device; integers and booleans count as numbers, quantized ones are unpacked.
        channel_dim: which dimension holds the channels, None where there are none.
    """
    if x.is_complex() or x.is_sparse or x.is_meta or x.is_nested or x.layout is not torch.strided:
        raise TypeError(f"no statistics of a {_kind(x)} tensor")
    x = _unpacked(x)
    if x.device.type == "cpu":
        moments = _reduce_on_cpu(x, channel_dim, wanted)
        return Deferred((), lambda: moments)
    return reduce_on_device(x, channel_dim, wanted)


def _unpacked(x: Tensor) -> Tensor:
    return x.detach().dequantize() if x.is_quantized else x.detach()


def _kind(x: Tensor) -> str:
    for kind in ("complex", "nested", "meta"):
        if getattr(x, f"is_{kind}")() if kind == "complex" else getattr(x, f"is_{kind}"):
            return kind
    return "sparse"


def reduce_on_device(x: Tensor, channel_dim: int | None, wanted: Wanted) -> Deferred[Moments]:
    """Start to reduce a dense tensor; nothing waits for the device before the result is finished.

    Reading and writing memory is the cost, so the values of a large tensor stay as narrow as they are exact, and
    are added up as on the CPU. What is not finite is replaced by a value that is, and its deviation by zero.
    """
    wide = widest_float(x.device)
    narrow = wide if x.numel() <= WHOLE_UP_TO or _exact(x) != torch.float32 else torch.float32
    flat = in_memory_order(x).to(narrow)
    is_finite = flat.isfinite()
    n = is_finite.sum()
    y, low, high = flat, n, n  # of no values
    if flat.numel():
        y = torch.where(is_finite, flat, flat.take(is_finite.view(torch.uint8).argmax()))
        low, high = torch.aminmax(y)
    counts = [n, flat.isnan().sum(), (flat == 0).sum()]
    counts.append((flat.abs() < rounded(wanted.threshold, x)).sum())
    tensors = {"counts": torch.stack(counts)}
    if wanted.channels and channel_dim is not None:
        tensors["alive"] = (x != 0).transpose(0, channel_dim).flatten(1).any(1)
    if wanted.histogram and flat.numel():
        histogram = _histogram_on_device(y.to(wide), is_finite, low.to(wide), high.to(wide))
        tensors["exponent"], tensors["bins"] = histogram
    if wanted.quantiles:
        tensors["values"] = value_counts(x)
    # Divided by a power of two, so that no square overflows or vanishes
    largest = torch.maximum(high, -low).to(torch.float32).clamp(2.0**-126, 2.0**126)
    unit = (largest.view(torch.int32) & 0x7F800000).view(torch.float32)
    rows, are_finite = _rows_of(y.div_(unit)), _rows_of(is_finite)
    centre = (rows.sum(1).to(wide).sum() / max(flat.numel(), 1)).to(narrow)
    shift = rows.sub_(centre).mul_(are_finite).sum(1).to(wide).sum()
    squares = torch.linalg.vector_norm(rows, dim=1).to(wide).square_().sum()
    figures = [low, high, unit, centre, shift, squares]
    tensors["figures"] = torch.stack([figure.to(wide) for figure in figures])

    def finish(*values: Tensor) -> Moments:
        fetched = dict(zip(tensors, values, strict=True))
        n, n_nan, n_zero, n_near = fetched["counts"].tolist()
        low, high, unit, centre, shift, squares = fetched["figures"].tolist() if n else [0.0] * 6
        moved, has_histogram = shift / max(n, 1), n and "bins" in fetched
        return Moments(
            n=n,
            mean=unit * (centre + moved),
            m2=max(squares - n * moved * moved, 0.0) * unit * unit,
            low=low if n else math.inf,
            high=high if n else -math.inf,
            n_nan=n_nan,
            n_inf=x.numel() - n - n_nan,
            n_zero=n_zero if wanted.zero else None,
            n_near_zero=n_near if wanted.near_zero else None,
            alive=tuple(fetched["alive"].tolist()) if "alive" in fetched else None,
            histogram=_settle(low, high, fetched["exponent"], fetched["bins"]) if has_histogram else None,
            values=ValueCounts.of(fetched["values"]) if "values" in fetched else None,
        )

    return Deferred(tuple(tensors.values()), finish)


def _rows_of(flat: Tensor) -> Tensor:
    """Cut a vector into rows of the same length, `ROW` at most."""
    return flat.view(-1, math.gcd(flat.numel(), ROW) or 1)


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


def _settle(low: float, high: float, fine_exponent: Tensor, fine_counts: Tensor) -> Histogram:
    exponent, counts = int(fine_exponent), fine_counts.tolist()
    if low == high:
        finest, first = grid(low, high)
        return Histogram(low, high, finest, first, (sum(counts),))
    first, last = (math.floor(math.ldexp(edge, -exponent)) for edge in (low, high))
    fine = Histogram(low, high, exponent, first, _within(counts, last - first + 1))
    return fine.merge(Histogram(low, high, exponent, first, ()))
