"""Where is the evidence over a folder of images? Running sums per class, and the ten worst images."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.records.explain import ClassEvidence, Outlier, Whereabouts

BORDER = 0.1  # of each side


def border_share(scores: Tensor) -> float | None:
    """Return the share of the positive part of a map, `(H, W)`, in the outer tenth of each side (at least a pixel).

    None if nothing is positive.
    """
    positive = scores.cpu().double().clamp_min(0)
    whole = positive.sum()
    rows, columns = (max(round(BORDER * side), 1) for side in scores.shape)
    middle = positive[rows : scores.shape[0] - rows, columns : scores.shape[1] - columns].sum()
    return ((whole - middle) / whole).item() if whole > 0 else None


GRID = 32  # cells per side of the mean map of a class
N_OUTLIERS = 10


@dataclass(frozen=True, slots=True)
class EvidencePosition:
    """The position of the evidence of one image; figures are None without positive evidence."""

    border: float | None  # the share at the border
    share: Tensor | None  # the share in each of 32 x 32 cells, float64


def lies_of(scores: Tensor) -> EvidencePosition:
    """Return the position of the evidence of a map, `(H, W)`."""
    positive = scores.detach().cpu().double().clamp_min(0)
    border = border_share(positive)
    return EvidencePosition(border, None if border is None else _small(positive / positive.sum()))


@dataclass(slots=True)
class _ClassSums:
    map: Tensor | None = None
    images: int = 0
    silent: int = 0
    border: float = 0.0


@dataclass(slots=True)
class EvidenceOfFolder:
    """Sums maps image by image; stores one small map per class and the names of ten images."""

    _sums: dict[str, _ClassSums] = field(default_factory=dict)
    _worst: list[tuple[float, int, str, str]] = field(default_factory=list)
    _n_seen: int = 0

    def take(self, image: str, label: str, lies: EvidencePosition) -> None:
        """Add the evidence of one image; all images have the same weight."""
        sums = self._sums.setdefault(label, _ClassSums())
        if lies.border is None or lies.share is None:
            sums.silent += 1
            return
        sums.images += 1
        sums.border += lies.border
        sums.map = lies.share if sums.map is None else sums.map + lies.share
        # Of equal images the first stays, whatever its name.
        entry = (lies.border, -self._n_seen, image, label)
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
            )
            for label, sums in self._sums.items()
        ]
        classes.sort(key=lambda evidence: -(evidence.border or 0.0))
        outliers = (
            Outlier(image, label, share) for share, _, image, label in sorted(self._worst, reverse=True)
        )
        return Whereabouts(tuple(classes), tuple(outliers))

    def mean_maps(self) -> Mapping[str, Tensor]:
        """Return for each class the mean share of the evidence in each of 32 x 32 cells; the sum is 1."""
        maps = {label: (sums.map, sums.images) for label, sums in self._sums.items()}
        return {label: (total / n).float() for label, (total, n) in maps.items() if total is not None}


def _small(share: Tensor) -> Tensor:
    """Pool the shares of an image to the common grid, with a sum of 1."""
    small = F.adaptive_avg_pool2d(share[None, None], (GRID, GRID))[0, 0]
    return small / small.sum()
