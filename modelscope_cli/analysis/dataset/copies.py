"""Which images are copies of one another: equal bytes by sorting, alike by hashes in sorted bands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelscope_cli.analysis.dataset.images import ImageTable
from modelscope_cli.records.check import ALIKE

Numbers = NDArray[np.int64]
_MOST_APART = 28  # of the 128 coarse bits, so that the fine ones are looked at
_FEWEST_EDGES = 8  # of the fine bits that either image has: plainer ones are not compared
_POPCOUNT = np.array([bin(n).count("1") for n in range(1 << 16)], dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two images, the earlier in the list first.

    Attributes:
        alike: the share of their edges that they have in common.
        how: in the words of `records.dataset`.
    """

    first: int
    second: int
    alike: float
    how: str = ALIKE


def equal_rows(rows: NDArray[np.uint8], numbers: Numbers) -> list[list[int]]:
    """Return the groups of numbers whose rows are equal, two or more each, in the order of their first."""
    if not len(numbers):
        return []
    keys = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], keys[order][1:] != keys[order][:-1]]))
    groups = (numbers[group] for group in np.split(order, starts[1:]))
    return sorted(sorted(group.tolist()) for group in groups if len(group) > 1)


def find_alike(table: ImageTable, numbers: Numbers, least: float) -> Iterator[Pair]:
    """Give the pairs of images that are alike, each once.

    The 128 coarse bits of every image are cut into bands of 16, straight and interleaved, and sorted by one band
    after the other: images with an equal band stand side by side, and no matrix of pairs is needed. Those of at
    most 28 differing bits are compared by their 512 fine bits: the number set in both over the number set in either
    (Jaccard 1912), which is not fooled by how much of an image is plain.

    Args:
        numbers: of the images to compare; of those with equal hashes the first is compared with each of the others.
        least: share of the edges that two images have in common to be alike.
    """
    coarse, fine = table.rows("coarse")[numbers], table.rows("fine")[numbers]
    hashes = np.concatenate([coarse, fine], 1)
    if len(numbers) < 2:
        return
    for group in equal_rows(hashes, np.arange(len(numbers))):
        for other in group[1:]:
            if _POPCOUNT[fine[other].view(np.uint16)].sum() >= _FEWEST_EDGES:
                yield Pair(int(numbers[group[0]]), int(numbers[other]), 1.0)
    distinct = _firsts(hashes)
    coarse, fine, numbers = coarse[distinct], fine[distinct].view(np.uint16), numbers[distinct]
    seen: set[tuple[int, int]] = set()
    for band in _bands(coarse):
        for left, right in _neighbours(band):
            near = _POPCOUNT[(coarse[left] ^ coarse[right]).view(np.uint16)].sum(1) <= _MOST_APART
            one, other = left[near], right[near]
            both, either = (
                _POPCOUNT[bits].sum(1) for bits in (fine[one] & fine[other], fine[one] | fine[other])
            )
            alike = np.where(either >= _FEWEST_EDGES, both / np.maximum(either, 1), 0.0)
            for n in np.flatnonzero(alike >= least):
                first, second = sorted((int(numbers[one[n]]), int(numbers[other[n]])))
                if (first, second) not in seen:
                    seen.add((first, second))
                    yield Pair(first, second, float(alike[n]))


def _firsts(rows: NDArray[np.uint8]) -> Numbers:
    """Return the first of all rows that are equal."""
    keys = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0]
    return np.sort(np.unique(keys, return_index=True)[1])


def _bands(coarse: NDArray[np.uint8]) -> Iterator[NDArray[np.uint16]]:
    for bits in (coarse, _interleaved(coarse)):
        bands = np.ascontiguousarray(bits).view(np.uint16)
        yield from bands.T


def _interleaved(coarse: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the same bits in another order: each band has one of every row of the grid."""
    bits = np.unpackbits(coarse, axis=1)
    return np.packbits(bits.reshape(len(bits), -1, 8).transpose(0, 2, 1).reshape(len(bits), -1), axis=1)


def _neighbours(band: NDArray[np.uint16]) -> Iterator[tuple[Numbers, Numbers]]:
    """Give the pairs of equal bands, those a step apart in the sorted order at once, then those two steps apart."""
    order = np.argsort(band, kind="stable").astype(np.int64)
    ordered = band[order]
    left = np.arange(len(order) - 1)
    step = 1
    while len(left):
        left = left[left + step < len(order)]
        left = left[ordered[left] == ordered[left + step]]
        if len(left):
            yield order[left], order[left + step]
        step += 1


def groups_of(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the pairs that hang together, each group in the order of its first image."""
    parent: dict[int, int] = {}

    def root(n: int) -> int:
        while parent.setdefault(n, n) != n:
            parent[n] = n = parent[parent[n]]
        return n

    for pair in pairs:
        first, second = sorted((root(pair.first), root(pair.second)))
        parent[second] = first
    groups: dict[int, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(root(pair.first), []).append(pair)
    return [groups[first] for first in sorted(groups)]
