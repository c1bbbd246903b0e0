"""Rank correlation of maps, random halves of an image, and shifted copies of a map."""

from collections.abc import Sequence

import torch
from torch import Tensor


def random_halves(size: tuple[int, int], patches: Sequence[float], n_pairs: int, seed: int) -> Tensor:
    """Return random halves of an image made of square patches, `(N, H, W)` bool, each followed by its complement.

    `patches` are sides relative to the short side, with `n_pairs` each; the grid is shifted at random.
    """
    generator = torch.Generator().manual_seed(seed)
    halves = []
    for patch in patches:
        side = max(round(patch * min(size)), 1)
        for _ in range(n_pairs):
            is_visible = torch.rand(*(length // side + 2 for length in size), generator=generator) < 0.5
            top, left = torch.randint(side, (2,), generator=generator).tolist()
            large = is_visible.repeat_interleave(side, 0).repeat_interleave(side, 1)
            half = large[top : top + size[0], left : left + size[1]]
            halves += [half, ~half]
    return torch.stack(halves)


def moved_copies(scores: Tensor, n: int, seed: int) -> list[Tensor]:
    """Return copies of a map, `(H, W)`, rolled by at least a quarter of one side."""
    generator = torch.Generator().manual_seed(seed)
    size, copies = scores.shape, []  # type: tuple[int, ...], list[Tensor]
    while len(copies) < n:
        moves = [int(torch.randint(side, (), generator=generator)) for side in size]
        if any(4 * min(move, side - move) >= side for move, side in zip(moves, size, strict=True)):
            copies.append(scores.roll(moves, (0, 1)))
    return copies


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return the rank correlation of two maps of one shape, ties at their mean rank; None if flat or not finite."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return None
    ranks = []
    for one in (a, b):
        _, groups, counts = one.detach().cpu().flatten().unique(return_inverse=True, return_counts=True)
        ends = counts.cumsum(0).double()
        ranks.append((ends - (counts - 1) / 2)[groups] - (one.numel() + 1) / 2)
    first, second = ranks
    length = first.norm() * second.norm()
    return (first @ second / length).clamp(-1, 1).item() if length > 0 else None
