"""Exact quantiles over any number of batches, without keeping any of them.

The 32 bits of a float, in the order of the numbers, are two digits of 16 bits. The first time through
the data the leading digit is counted, which tells in which of 65,536 buckets a quantile lies: its value to one step
of bfloat16. The second time the trailing digit is counted, in those buckets only, which tells the value. Counts
merge by addition.

The p-th percentile is the smallest value that at least p % of the finite values are not above: an order statistic,
`numpy.quantile(..., method="inverted_cdf")`. Numbers with more than 24 significant bits (float64, large integers)
are rounded to float32 first, and those beyond its range count as its largest number.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from modelscope_cli.records.stats import percent_of

N_PATTERNS = 1 << 16
_COUNTS = (torch.uint8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ValueCounts:
    """Counts of the patterns that occurred: for activations a few thousand, 4 to 10 bytes each."""

    patterns: Tensor  # those that occurred, ascending, as uint16
    counts: Tensor  # how often each did, in the smallest type that holds them

    @classmethod
    def of(cls, dense: Tensor) -> Self:
        """Make one of 65,536 counts."""
        dense = dense.cpu()
        patterns = dense.nonzero().flatten()
        counts = dense[patterns]
        most = int(counts.max()) if counts.numel() else 0
        kind = next(kind for kind in _COUNTS if most <= torch.iinfo(kind).max)
        return cls(patterns.to(torch.uint16), counts.to(kind))

    @classmethod
    def none(cls) -> Self:
        return cls.of(torch.zeros(N_PATTERNS, dtype=torch.int64))

    def dense(self) -> Tensor:
        """Return all 65,536 counts as int64."""
        counts = torch.zeros(N_PATTERNS, dtype=torch.int64)
        counts[self.patterns.long()] = self.counts.long()
        return counts

    def merge(self, other: Self) -> Self:
        """Return the counts of both sets of values; exact, associative and commutative."""
        return self.of(self.dense() + other.dense())

    @property
    def total(self) -> int:
        return int(self.counts.sum(dtype=torch.int64))

    def holding(self, rank: int) -> tuple[int, int]:
        """Return the pattern of the value with this rank, 1 being the lowest, and its rank among equal patterns.

        A rank beyond the last value is the last.
        """
        up_to = self.counts.cumsum(0, dtype=torch.int64)
        rank = min(rank, int(up_to[-1]))
        index = int(torch.searchsorted(up_to, rank))
        before = int(up_to[index - 1]) if index else 0
        return int(self.patterns[index]), rank - before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueCounts) and torch.equal(self.dense(), other.dense())

    __hash__ = None  # type: ignore[assignment]


_RUN = 16  # elements that lie together: reading one of them from memory brings in about this many


def in_memory_order(x: Tensor) -> Tensor:
    """Return the elements of `x` in one dimension, in whichever order needs no copy."""
    if x.is_contiguous():
        return x.reshape(-1)
    by_stride = sorted(range(x.ndim), key=x.stride, reverse=True)
    return x.permute(by_stride).reshape(-1)


def even_sample(flat: Tensor, least: int) -> tuple[Tensor, int]:
    """Return at least `least` elements of a vector, and how many each stands for; of a short one all, and 1.

    They are short runs at even distances. A distance that shares no factor with the number of runs visits all
    channels, rows and columns alike.
    """
    n_runs = flat.numel() // _RUN
    step = max(n_runs * _RUN // least, 1)
    while math.gcd(step, n_runs) > 1:
        step -= 1
    if step == 1:
        return flat, 1
    return flat[: n_runs * _RUN].view(-1, _RUN)[::step].reshape(-1), step


# Values of these types have no trailing digit.
SHORT = ("bfloat16", "uint8", "int8", "bool")
_CHUNK = 1 << 18
_HALF = N_PATTERNS // 2
# Between them lie the buckets of finite values; NaN and infinite ones are outside.
_FIRST, _END = 0x0080, 0xFF80


def leading_digits(x: Tensor) -> Tensor:
    """Return how many finite values of `x` lie in each of the 65,536 buckets, int64, on its device."""
    counts = torch.zeros(N_PATTERNS, dtype=torch.int64, device=x.device)
    for bits in _bits_of(x):
        # As signed numbers, the leading digits of negative values are in the opposite order, from -0.0 on.
        counts += _count((bits >> 16).add_(_HALF))
    counts = torch.cat([counts[:_HALF].flip(0), counts[_HALF:]])
    counts[:_FIRST] = 0
    counts[_END:] = 0
    return counts


def trailing_digits(x: Tensor, buckets: Sequence[int]) -> dict[int, Tensor]:
    """Return, by bucket, how often each trailing digit occurs among its values, int64, on the device of `x`."""
    counts = {bucket: torch.zeros(N_PATTERNS, dtype=torch.int64, device=x.device) for bucket in buckets}
    for bits in _bits_of(x) if counts else ():
        leading, trailing = bits >> 16, bits & 0xFFFF
        for bucket, count in counts.items():
            digit = bucket - _HALF if bucket >= _HALF else -(bucket + 1)
            if _is_on_cpu(x):
                # NumPy's takes a tenth of the time of torch's where half of the values are inside: zeros of a ReLU.
                inside = trailing.numpy().compress(leading.numpy() == digit)
                count.add_(_count(torch.from_numpy(inside)))
            else:  # without asking the device how many there are
                count.scatter_add_(0, trailing.long(), (leading == digit).long())
    return {bucket: count if bucket >= _HALF else count.flip(0) for bucket, count in counts.items()}


def quantiles_of(
    keys: tuple[str, ...], leading: ValueCounts, trailing: Mapping[int, ValueCounts] | None = None
) -> dict[str, float]:
    """Return the quantiles of these names (`p50`); without the trailing digits, rounded towards zero to bfloat16.

    Args:
        leading: holds at least one value.
        trailing: by bucket, as many as `buckets_of` says.
    """
    quantiles = {}
    for key in keys:
        bucket, rank = leading.holding(_rank(key, leading.total))
        inside = (trailing or {}).get(bucket)
        # A value that is not there the second time leaves the bucket empty: its edge is one step off at most.
        digit = inside.holding(rank)[0] if inside is not None and inside.total else None
        quantiles[key] = _value(bucket, digit)
    return quantiles


def buckets_of(keys: tuple[str, ...], leading: ValueCounts) -> tuple[int, ...]:
    """Return the buckets in which the quantiles lie, ascending; none where nothing finite was seen."""
    n = leading.total
    return tuple(sorted({leading.holding(_rank(key, n))[0] for key in keys})) if n else ()


def _rank(key: str, n: int) -> int:
    return max(math.ceil(percent_of(key) * n / 100), 1)


def _value(bucket: int, digit: int | None) -> float:
    if bucket >= _HALF:
        bits = (bucket - _HALF) << 16 | (digit or 0)
    else:
        bits = 0xFFFFFFFF - (bucket << 16 | (0xFFFF if digit is None else digit))
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value + 0.0  # -0.0 and 0.0 are the same value


def _count(patterns: Tensor) -> Tensor:
    if _is_on_cpu(patterns):
        return torch.bincount(patterns, minlength=N_PATTERNS)
    counts = torch.zeros(N_PATTERNS, dtype=torch.int64, device=patterns.device)  # bincount would wait for it
    return counts.scatter_add_(0, patterns.long(), torch.ones_like(patterns, dtype=torch.int64))


def _bits_of(x: Tensor) -> Iterable[Tensor]:
    """Return the bits of all values as float32, in chunks that stay in cache on a CPU."""
    flat = in_memory_order(x)
    if not _is_on_cpu(x):
        return (_as_float32(flat).view(torch.int32),)
    return (_as_float32(chunk).view(torch.int32) for chunk in torch.split(flat, _CHUNK))


def _is_on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _as_float32(flat: Tensor) -> Tensor:
    if flat.dtype != torch.float64:
        return flat.to(torch.float32)  # no other number is beyond its range
    largest = torch.finfo(torch.float32).max
    return torch.where(flat.isfinite(), flat.clamp(-largest, largest), torch.nan).to(torch.float32)
