"""Planted evidence: how much of a known term of the score does a method recover on the user's model?

A term is added to the score: k times the mean, over a box, of the tensor the method explains: the layer's
activation for the CAM family, which cannot see a term of the pixels, and the pixels for saliency, integrated
gradients or occlusion. The method explains the sum, and the change of its map should be in the box: if a method is
linear in the score, the change is the map of the term alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in cells of the explained tensor, the ends not included
Term = Callable[[Tensor], Tensor]  # from the explained tensor, (N, C, h, w), to (N,)

N_PLANTS = 3
_SIDE = 0.3  # relative to the tensor's
_TRIED = 16


@dataclass(frozen=True, slots=True)
class Planted:
    """Recovery of planted evidence, averaged over the boxes.

    Attributes:
        in_box: the share of the map's absolute change inside the box; 0 without a change.
        recovered: the map's gain in the box over the value of the term; 1 if maps add up to the score.
    """

    in_box: float
    recovered: float


def planted_evidence(
    explain_again: Callable[[Term], Tensor],
    reference: Tensor,
    explained: Tensor,
    score: float,
    *,
    seed: int = 0,
) -> Planted | None:
    """Plant evidence in a few boxes, one at a time, and measure how much a method recovers.

    Args:
        explain_again: returns the map of score + term, on the grid of `explained`.
        reference: the map of the score alone, `(h, w)`.
        explained: the tensor the method explains, `(1, C, h, w)`.
        score: the score; the term has its magnitude, at least 1.

    Returns:
        None if every box has a mean of zero.
    """
    plants = []
    for seed_of_plant in range(seed, seed + N_PLANTS):
        box = _choose_box(explained, seed_of_plant)
        if box is None:
            return None
        value = max(abs(score), 1.0)
        term = planted_term(box, value / _mean_over(box, explained).item())
        plants.append(given_back(explain_again(term) - reference, box, value))
    return Planted(fmean(plant.in_box for plant in plants), fmean(plant.recovered for plant in plants))


def planted_term(box: Box, k: float) -> Term:
    """Return `k` times the mean of a tensor over a box, differentiable."""
    return lambda tensor: k * _mean_over(box, tensor)


def given_back(gained: Tensor, box: Box, value: float) -> Planted:
    """Return how much of a map's change, `(h, w)`, is in the box, and its ratio to the term's value."""
    x0, y0, x1, y1 = box
    gained = gained.cpu().double()
    inside = gained[y0:y1, x0:x1]
    whole = gained.abs().sum().item()
    return Planted(inside.abs().sum().item() / whole if whole else 0.0, inside.sum().item() / value)


def _mean_over(box: Box, tensor: Tensor) -> Tensor:
    x0, y0, x1, y1 = box
    return tensor[..., y0:y1, x0:x1].mean((1, 2, 3))


def _choose_box(explained: Tensor, seed: int) -> Box | None:
    """Return the box with the largest mean of a few random ones; None if all are zero."""
    generator = torch.Generator().manual_seed(seed)
    height, width = explained.shape[-2:]
    tall, wide = (max(round(_SIDE * side), 1) for side in (height, width))
    tops = torch.randint(height - tall + 1, (_TRIED,), generator=generator).tolist()
    lefts = torch.randint(width - wide + 1, (_TRIED,), generator=generator).tolist()
    boxes = [(x, y, x + wide, y + tall) for x, y in zip(lefts, tops, strict=True)]
    means = {box: abs(_mean_over(box, explained).item()) for box in boxes}
    best = max(means, key=lambda box: means[box])
    return best if means[best] > 0 else None
