"""How often each of 65,536 patterns of 16 bits occurred, merged by addition."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

N_PATTERNS = 1 << 16
_COUNTS = (torch.uint8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Only the patterns that occurred are kept: of activations that is a few thousand, 4 to 10 bytes each.

    Attributes:
        patterns: those that occurred, ascending, as uint16.
        counts: how often each did, in the smallest type that holds them.
    """

    patterns: Tensor
    counts: Tensor

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
        """Return the tally of nothing."""
        return cls.of(torch.zeros(N_PATTERNS, dtype=torch.int64))

    def dense(self) -> Tensor:
        """Return all 65,536 counts as int64."""
        counts = torch.zeros(N_PATTERNS, dtype=torch.int64)
        counts[self.patterns.long()] = self.counts.long()
        return counts

    def merge(self, other: Self) -> Self:
        """Return the tally of both sets of values; exact, associative and commutative."""
        return self.of(self.dense() + other.dense())

    @property
    def total(self) -> int:
        return int(self.counts.sum(dtype=torch.int64))

    def holding(self, rank: int) -> tuple[int, int]:
        """Return the pattern of the value with this rank, 1 being the lowest, and its rank among those alike.

        A rank beyond the last value is the last.
        """
        up_to = self.counts.cumsum(0, dtype=torch.int64)
        rank = min(rank, int(up_to[-1]))
        index = int(torch.searchsorted(up_to, rank))
        before = int(up_to[index - 1]) if index else 0
        return int(self.patterns[index]), rank - before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and torch.equal(self.dense(), other.dense())

    __hash__ = None  # type: ignore[assignment]
