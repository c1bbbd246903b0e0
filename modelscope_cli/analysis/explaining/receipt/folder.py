"""Where is the evidence over a folder of images? Running sums per class, and the ten worst images."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.records.explain import ClassEvidence, Outlier, Whereabouts

TOLERANCE = 15  # pixels, in the pointing game (Zhang et al. 2018)
BORDER = 0.1  # of each side


def energy_inside(scores: Tensor, inside: Tensor) -> float | None:
    """Return the share of the positive part of a map, `(H, W)`, inside a bool mask; None if nothing is positive.

    The energy-based pointing game of Wang et al. 2020, Score-CAM.
    """
    positive = scores.cpu().double().clamp_min(0)
    whole = positive.sum()
    return (positive[inside.cpu()].sum() / whole).item() if whole > 0 else None


def pointing(scores: Tensor, inside: Tensor, tolerance: int = TOLERANCE) -> float | None:
    """Return the share of the strongest pixels (usually one) within `tolerance` pixels of the mask.

    None for a flat map.
    """
    scores = scores.cpu()
    if scores.min() == scores.max():
        return None
    squares = torch.arange(-tolerance, tolerance + 1).square()
    disc = (squares[:, None] + squares < tolerance**2).float()
    near = F.conv2d(inside.cpu().float()[None, None], disc[None, None], padding=tolerance)[0, 0] > 0.5
    return near[scores == scores.max()].float().mean().item()


def border_of(size: tuple[int, int]) -> Tensor:
    """Return a bool mask of the outer tenth of each side of `(H, W)`, at least one pixel."""
    mask = torch.ones(size, dtype=torch.bool)
    rows, columns = (max(round(BORDER * side), 1) for side in size)
    mask[rows : size[0] - rows, columns : size[1] - columns] = False
    return mask


def location(scores: Tensor, inside: Tensor | None = None) -> dict[str, float | None]:
    """Return the figures of the position of a map's evidence, `(H, W)`, by their names in a `Receipt`."""
    figures = {"border": energy_inside(scores, border_of((scores.shape[0], scores.shape[1])))}
    if inside is not None:
        figures["inside"] = energy_inside(scores, inside)
        figures["even_inside"] = inside.double().mean().item()
        figures["pointing"] = pointing(scores, inside)
    return figures


GRID = 32  # cells per side of the mean map of a class
N_OUTLIERS = 10


@dataclass(frozen=True, slots=True)
class EvidencePosition:
    """The position of the evidence of one image; figures are None without positive evidence."""

    # border, within: the share at the border and inside the object
    border: float | None
    within: float | None
    has_inside: bool  # whether the object's position was given
    share: Tensor | None  # the share in each of 32 x 32 cells, float64


def lies_of(scores: Tensor, inside: Tensor | None = None) -> EvidencePosition:
    """Return the position of the evidence of a map, `(H, W)`; `inside` is a bool mask of the object."""
    positive = scores.detach().cpu().double().clamp_min(0)
    border = energy_inside(positive, border_of((scores.shape[0], scores.shape[1])))
    within = None if inside is None else energy_inside(positive, inside)
    share = None if border is None else _small(positive / positive.sum())
    return EvidencePosition(border, within, inside is not None, share)


@dataclass(slots=True)
class _ClassSums:
    map: Tensor | None = None
    images: int = 0
    silent: int = 0
    border: float = 0.0
    outside: float = 0.0


@dataclass(slots=True)
class EvidenceOfFolder:
    """Sums maps image by image; stores one small map per class and the names of ten images."""

    _sums: dict[str, _ClassSums] = field(default_factory=dict)
    _worst: list[tuple[float, int, str, str]] = field(default_factory=list)
    _n_seen: int = 0
    _has_inside: bool = False

    def take(self, image: str, label: str, lies: EvidencePosition) -> None:
        """Add the evidence of one image; all images have the same weight."""
        sums = self._sums.setdefault(label, _ClassSums())
        self._has_inside = lies.has_inside
        if lies.border is None or lies.share is None:
            sums.silent += 1
            return
        sums.images += 1
        sums.border += lies.border
        sums.outside += 0.0 if lies.within is None else 1 - lies.within
        sums.map = lies.share if sums.map is None else sums.map + lies.share
        # Of equal images the first stays, whatever its name.
        entry = (lies.border if lies.within is None else 1 - lies.within, -self._n_seen, image, label)
        self._n_seen += 1
        push = heapq.heappush if len(self._worst) < N_OUTLIERS else heapq.heappushpop
        push(self._worst, entry)

    def whereabouts(self) -> Whereabouts:
        """Return the result over the images so far."""
        classes = [
            ClassEvidence(
                label,
                sums.images,
                sums.silent,
                sums.border / sums.images if sums.images else None,
                sums.outside / sums.images if sums.images and self._has_inside else None,
            )
            for label, sums in self._sums.items()
        ]
        measure = "outside" if self._has_inside else "border"
        classes.sort(key=lambda evidence: -(getattr(evidence, measure) or 0.0))
        outliers = (
            Outlier(image, label, share) for share, _, image, label in sorted(self._worst, reverse=True)
        )
        return Whereabouts(tuple(classes), tuple(outliers), measure)

    def mean_maps(self) -> Mapping[str, Tensor]:
        """Return for each class the mean share of the evidence in each of 32 x 32 cells; the sum is 1."""
        maps = {label: (sums.map, sums.images) for label, sums in self._sums.items()}
        return {label: (total / n).float() for label, (total, n) in maps.items() if total is not None}


def _small(share: Tensor) -> Tensor:
    """Pool the shares of an image to the common grid, with a sum of 1."""
    small = F.adaptive_avg_pool2d(share[None, None], (GRID, GRID))[0, 0]
    return small / small.sum()
