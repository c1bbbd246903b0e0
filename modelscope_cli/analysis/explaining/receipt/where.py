"""Where is the evidence? Inside a box or a mask, at the border, under the strongest pixel."""

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = 15  # pixels, in the pointing game (Zhang et al. 2018)
BORDER = 0.1  # of each side


def energy_inside(scores: Tensor, inside: Tensor) -> float | None:
    """Return the share of the positive part of a map, `(H, W)`, that lies where `inside`, bool, is true.

    None where nothing is positive. (Wang et al. 2020, Score-CAM: the energy-based pointing game.)
    """
    positive = scores.cpu().double().clamp_min(0)
    whole = positive.sum()
    return (positive[inside.cpu()].sum() / whole).item() if whole > 0 else None


def pointing(scores: Tensor, inside: Tensor, tolerance: int = TOLERANCE) -> float | None:
    """Return the share of the strongest pixels, one as a rule, that lie inside or nearly so.

    `tolerance`: how near, in pixels. None for a flat map, which points nowhere.
    """
    scores = scores.cpu()
    if scores.min() == scores.max():
        return None
    squares = torch.arange(-tolerance, tolerance + 1).square()
    disc = (squares[:, None] + squares < tolerance**2).float()
    near = F.conv2d(inside.cpu().float()[None, None], disc[None, None], padding=tolerance)[0, 0] > 0.5
    return near[scores == scores.max()].float().mean().item()


def border_of(size: tuple[int, int]) -> Tensor:
    """Return where the outer tenth of each side of `(H, W)` is, bool; at least one pixel of each."""
    mask = torch.ones(size, dtype=torch.bool)
    rows, columns = (max(round(BORDER * side), 1) for side in size)
    mask[rows : size[0] - rows, columns : size[1] - columns] = False
    return mask


def location(scores: Tensor, inside: Tensor | None = None) -> dict[str, float | None]:
    """Return the figures of where a map's evidence is, `(H, W)`, under the names they have in a `Receipt`."""
    found = {"border": energy_inside(scores, border_of((scores.shape[0], scores.shape[1])))}
    if inside is not None:
        found["inside"] = energy_inside(scores, inside)
        found["even_inside"] = inside.double().mean().item()
        found["pointing"] = pointing(scores, inside)
    return found
