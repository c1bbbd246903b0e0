"""Where is the evidence over a folder of images? Sums for each class and ten names, added up image by image."""

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


GRID = 32  # a class keeps a map of so many cells a side, whatever the size of the images
N_OUTLIERS = 10


@dataclass(frozen=True, slots=True)
class EvidencePosition:
    """Where the evidence of one image lies.

    Attributes:
        border, within: the share of it at the border, and where the object is; None where there is none.
        has_inside: whether somebody said where the object is.
        share: of it in each of 32 x 32 cells, float64; None where there is none.
    """

    border: float | None
    within: float | None
    has_inside: bool
    share: Tensor | None


def lies_of(scores: Tensor, inside: Tensor | None = None) -> EvidencePosition:
    """Look where the evidence of a map lies, `(H, W)`; `inside`: where the object is, bool."""
    positive = scores.detach().cpu().double().clamp_min(0)
    border = energy_inside(positive, border_of((scores.shape[0], scores.shape[1])))
    within = None if inside is None else energy_inside(positive, inside)
    share = None if border is None else _small(positive / positive.sum())
    return EvidencePosition(border, within, inside is not None, share)


@dataclass(slots=True)
class _Sums:
    """Of one class: running sums, never maps of single images."""

    map: Tensor | None = None
    images: int = 0
    silent: int = 0
    border: float = 0.0
    outside: float = 0.0


@dataclass(slots=True)
class EvidenceOfFolder:
    """Adds up maps image by image; holds one small map a class and ten names, however many images there are."""

    _sums: dict[str, _Sums] = field(default_factory=dict)
    _worst: list[tuple[float, int, str, str]] = field(default_factory=list)
    _n_seen: int = 0
    _has_inside: bool = False

    def take(self, image: str, label: str, lies: EvidencePosition) -> None:
        """Take in where the evidence of one image lies; every image counts alike."""
        sums = self._sums.setdefault(label, _Sums())
        self._has_inside = lies.has_inside
        if lies.border is None or lies.share is None:
            sums.silent += 1
            return
        sums.images += 1
        sums.border += lies.border
        sums.outside += 0.0 if lies.within is None else 1 - lies.within
        sums.map = lies.share if sums.map is None else sums.map + lies.share
        # The first of equals stays; names never decide.
        entry = (lies.border if lies.within is None else 1 - lies.within, -self._n_seen, image, label)
        self._n_seen += 1
        push = heapq.heappush if len(self._worst) < N_OUTLIERS else heapq.heappushpop
        push(self._worst, entry)

    def whereabouts(self) -> Whereabouts:
        """Return what the images so far add up to."""
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
        classes.sort(key=lambda one: -(getattr(one, measure) or 0.0))
        outliers = (
            Outlier(image, label, share) for share, _, image, label in sorted(self._worst, reverse=True)
        )
        return Whereabouts(tuple(classes), tuple(outliers), measure)

    def mean_maps(self) -> Mapping[str, Tensor]:
        """Return for each class the mean share of the evidence in each of 32 x 32 cells; they add up to 1."""
        maps = {label: (sums.map, sums.images) for label, sums in self._sums.items()}
        return {label: (total / n).float() for label, (total, n) in maps.items() if total is not None}


def _small(share: Tensor) -> Tensor:
    """Images differ in size; their shares are brought to one grid, and add up to 1 there again."""
    small = F.adaptive_avg_pool2d(share[None, None], (GRID, GRID))[0, 0]
    return small / small.sum()
