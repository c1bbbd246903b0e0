"""How much of evidence that is known to be there does a method give back? On the user's own model.

A term is added to the score: k times the mean, over a box, of the very tensor the method explains. That is the
layer's activation for the CAM family and the pixels for saliency, integrated gradients or occlusion: a gradient at
a layer cannot see a term of the pixels, which do not pass through it. The method explains the sum again, and what
its map gained has to lie in the box: where a method is linear in the score, the gain is the map of the term alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in cells of the explained tensor, the ends not included
Term = Callable[[Tensor], Tensor]  # the explained tensor (N, C, h, w) to a number each, (N,)

N_PLANTS = 3
_SIDE = 0.3  # of the tensor's
_TRIED = 16


@dataclass(frozen=True, slots=True)
class Planted:
    """What came back of planted evidence, means over the plants.

    Attributes:
        in_box: share of the change of the map, in magnitude, that lies in the box; 0 where nothing changed.
        recovered: what the map gained in the box, over the value of the term: 1 where maps add up to the score.
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
    """Plant evidence in a few boxes, one after the other, and see what a method makes of it.

    Args:
        explain_again: the map of score + term, on the grid of `explained` (not enlarged, which would smear it).
        reference: the map of the score alone, `(h, w)` too.
        explained: the tensor the method explains, `(1, C, h, w)`: the term is a function of this.
        score: what the model says; the term is made as large as that, or 1.

    Returns:
        None where no box can be found whose mean is not zero.
    """
    found = []
    for seed_of_plant in range(seed, seed + N_PLANTS):
        box = _choose_box(explained, seed_of_plant)
        if box is None:
            return None
        value = max(abs(score), 1.0)
        term = planted_term(box, value / _mean_over(box, explained).item())
        found.append(given_back(explain_again(term) - reference, box, value))
    return Planted(fmean(one.in_box for one in found), fmean(one.recovered for one in found))


def planted_term(box: Box, k: float) -> Term:
    """Return `k` times the mean of a tensor over a box, differentiable."""
    return lambda tensor: k * _mean_over(box, tensor)


def given_back(gained: Tensor, box: Box, value: float) -> Planted:
    """Say how much of a map's change, `(h, w)`, lies in the box, and how much of the term's value that is."""
    x0, y0, x1, y1 = box
    gained = gained.cpu().double()
    inside = gained[y0:y1, x0:x1]
    whole = gained.abs().sum().item()
    return Planted(inside.abs().sum().item() / whole if whole else 0.0, inside.sum().item() / value)


def _mean_over(box: Box, tensor: Tensor) -> Tensor:
    x0, y0, x1, y1 = box
    return tensor[..., y0:y1, x0:x1].mean((1, 2, 3))


def _choose_box(explained: Tensor, seed: int) -> Box | None:
    """Of a few boxes at random the one with the largest mean: a term of a place that is silent would be noise."""
    generator = torch.Generator().manual_seed(seed)
    height, width = explained.shape[-2:]
    tall, wide = (max(round(_SIDE * side), 1) for side in (height, width))
    tops = torch.randint(height - tall + 1, (_TRIED,), generator=generator).tolist()
    lefts = torch.randint(width - wide + 1, (_TRIED,), generator=generator).tolist()
    boxes = [(x, y, x + wide, y + tall) for x, y in zip(lefts, tops, strict=True)]
    means = {box: abs(_mean_over(box, explained).item()) for box in boxes}
    best = max(means, key=lambda box: means[box])
    return best if means[best] > 0 else None
