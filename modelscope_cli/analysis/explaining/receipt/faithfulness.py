"""Does the model need the pixels a map points at? Covering; insertion, deletion and ROAD, against chance and edges.

Covering shows the model random halves of the image, the same for every map, and correlates the evidence left in the
map with the model's score (Bhatt et al. 2020). Shifted copies of the map measure chance, without further passes.

Insertion and deletion (Petsiuk et al. 2018, RISE) use only the order of the pixels, and show the model images
unlike its training data (Gomez et al. 2022); ROAD (Rong et al. 2022) imputes removed pixels from their neighbours.
They are known to disagree, so all are reported.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.explaining.receipt.rankings import (
    edges,
    moved_copies,
    random_halves,
    random_ranking,
    ranking,
    share_of_ties,
)
from modelscope_cli.lean import without_dynamo
from modelscope_cli.records.explain import Curves

NOISE = 0.01
_MOST_SWEEPS = 500
_TOLERANCE = 1e-4  # of the residual, relative to the right side; at most a tenth of the noise in the pixels


def impute(image: Tensor, known: Tensor, generator: torch.Generator, noise: float = NOISE) -> Tensor:
    """Return the image with the other pixels imputed and noise added to them.

    Args:
        image: `(1, C, H, W)`.
        known: `(H, W)` bool, at least one True.
        noise: the standard deviation of the noise, in units of the image.
    """
    values = torch.randn(image.shape, generator=generator).to(image)
    return torch.where(known, image, linear_imputation(image.float(), known).to(image) + noise * values)


def linear_imputation(image: Tensor, known: Tensor, tolerance: float = _TOLERANCE) -> Tensor:
    """Solve for the pixels that are not known: `(1, C, H, W)` and `(H, W)` bool to `(1, C, H, W)`."""
    planes = image[0][:, None]  # one linear system per channel, with the same matrix
    unknown = (~known).to(planes.dtype)
    degree = _around(torch.ones_like(planes[:1]))

    def matrix(x: Tensor) -> Tensor:
        return unknown * (degree * x - _around(x))

    right = unknown * _around(known * planes)
    x = unknown * _from_coarse(planes, known.to(planes.dtype)[None, None])
    residual = right - matrix(x)
    direction, square = residual, _dot(residual, residual)
    enough = tolerance**2 * _dot(right, right)
    for _ in range(_MOST_SWEEPS):
        if (square <= enough).all():
            break
        ahead = matrix(direction)
        step = square / _dot(direction, ahead).clamp_min(1e-30)
        x = x + step * direction
        residual = residual - step * ahead
        before, square = square, _dot(residual, residual)
        direction = residual + (square / before.clamp_min(1e-30)) * direction
    return torch.where(known, planes, x)[:, 0][None]


def _around(x: Tensor) -> Tensor:
    """Return the weighted sum of the eight neighbours, zero beyond the border.

    The kernel is (1, 2, 1) along both sides without its middle; slices are four times as fast as a convolution.
    """
    rows = 2 * x
    rows[..., 1:] += x[..., :-1]
    rows[..., :-1] += x[..., 1:]
    both = 2 * rows
    both[..., 1:, :] += rows[..., :-1, :]
    both[..., :-1, :] += rows[..., 1:, :]
    return (both - 4 * x) / 12


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((-2, -1), keepdim=True)


def _from_coarse(planes: Tensor, known: Tensor) -> Tensor:
    """Fill holes with the mean of the known pixels around, at the finest scale that has any."""
    if known.all() or min(planes.shape[-2:]) < 2:
        return planes
    pooled = F.avg_pool2d(known, 2, ceil_mode=True)
    coarse = F.avg_pool2d(planes * known, 2, ceil_mode=True) / pooled.clamp_min(1e-6)
    filled = _from_coarse(coarse, (pooled > 0).to(planes.dtype))
    enlarged = F.interpolate(filled, planes.shape[-2:], mode="bilinear", align_corners=False)
    return torch.where(known > 0, planes, enlarged)


with without_dynamo():
    from torchvision.transforms.functional import gaussian_blur

Function = Callable[[Tensor], Tensor]  # images (N, C, H, W) to a number each, (N,)

STEPS = 10
N_RANDOM = 19  # a map exceeds all of them by chance once in twenty times
N_COPIES, N_BEATEN = 99, 90  # a map exceeds 90 of its copies by chance once in ten times
N_HALVES = 8  # pairs of complementary halves per patch size and baseline
PATCHES = (1 / 8, 3 / 16)  # sides of patches relative to the short side of the image
_COARSE = (0, 8, 5, 4, 3)  # patches per side of random rankings; 0 for single pixels
COVERED = 2 * 2 * len(PATCHES) * N_HALVES
REMOVED = (0.2, 0.4, 0.6, 0.8)
# Smallest relative drop of the score from the image to a baseline: curves are divided by it.
_LEAST_GAP = 0.25
_LEAST_LOST = 0.1  # smallest relative drop of the score when half the image is covered


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one ranking of the pixels."""

    # insertion, deletion: areas under the normalised curves, averaged over the baselines that have one
    insertion: float | None
    deletion: float | None
    curves: tuple[Curves, ...]
    road: float | None

    @property
    def gain(self) -> float | None:
        """Insertion - deletion; its sign changes when the order of the pixels is reversed."""
        if self.insertion is None or self.deletion is None:
            return None
        return self.insertion - self.deletion


class Faithfulness:
    """Tests of any number of maps of one image."""

    def __init__(
        self,
        probability: Function,
        image: Tensor,
        *,
        batch: int = 16,
        seed: int = 0,
        is_normalised: bool = True,
        whole: float | None = None,
    ) -> None:
        """Store the arguments; the model runs later.

        Args:
            probability: returns that of the target for at most `batch` images; called without gradients.
            image: `(1, C, H, W)`, preprocessed.
            seed: the seed of ties, random rankings and noise; figures do not depend on the order of calls.
            is_normalised: whether zero is the mean colour of the data; otherwise the image's mean colour is used.
            whole: the probability for the whole image, if known.
        """
        self._probability, self._image, self._batch = probability, image.detach(), batch
        self._seed, self._is_normalised, self._whole = seed, is_normalised, whole

    def covering(self, scores: Tensor) -> dict[str, float | None]:
        """Return how well a map, `(H, W)`, predicts which halves of the image matter; names as in a `Receipt`."""
        nothing = dict.fromkeys(("covering", "covering_chance", "covering_edges"))
        if self.unmade or not bool(scores.isfinite().all()) or scores.min() == scores.max():
            return nothing
        rho, edge, *others = self._correlations(
            [scores.cpu(), edges(self._image).cpu(), *moved_copies(scores.cpu(), N_COPIES, self._seed)]
        )
        return {"covering": rho, "covering_chance": sorted(others)[N_BEATEN - 1], "covering_edges": edge}

    @property
    def left_half(self) -> Tensor:
        """The image with its right half in the mean colour."""
        blank = self._baselines["mean colour"]
        half = self._image.shape[-1] // 2
        return torch.cat([self._image[..., :half], blank[..., half:]], -1)

    @cached_property
    def unmade(self) -> str:
        """Why covering cannot be tested; empty if it can."""
        outputs = self._covered[1]
        whole = self._whole if self._whole is not None else next(self._say([self._image]))
        if not (math.isfinite(whole) and all(map(math.isfinite, outputs))):
            return "the model's score of the half-covered image is not finite"
        lowest = min(fmean(outputs[n :: len(self._baselines)]) for n in range(len(self._baselines)))
        if whole - lowest >= _LEAST_LOST * max(abs(whole), abs(lowest)) > 0:
            return ""
        return "the model's score of the half-covered image is about the same or higher"

    @cached_property
    def _covered(self) -> tuple[Tensor, tuple[float, ...]]:
        """The visible halves, `(N, H, W)` bool, and the probability for each half and baseline."""
        halves = random_halves(self._size, PATCHES, N_HALVES, self._seed)
        images = (
            torch.where(half.to(self._image.device), self._image, blank)
            for half in halves
            for blank in self._baselines.values()
        )
        return halves, tuple(self._say(images))

    def _correlations(self, maps: Sequence[Tensor]) -> list[float]:
        """Correlate the sum of each map over the halves with the model's output, both centred in each group."""
        halves, outputs = self._covered
        n_blanks = len(self._baselines)
        values = torch.tensor(outputs, dtype=torch.float64)
        if ((values >= 0) & (values <= 1)).all():
            values = torch.logit(values, 1e-6)
        values = values.view(len(PATCHES), -1, n_blanks)
        sums = _pooled(halves.float()).flatten(1) @ _pooled(torch.stack(list(maps)).float()).flatten(1).T
        groups = sums.double().view(len(PATCHES), -1, 1, len(maps))
        expected = (groups - groups.mean(1, keepdim=True)).expand(-1, -1, n_blanks, -1).flatten(0, 2)
        observed = (values - values.mean(1, keepdim=True)).flatten()
        length = observed.norm() * expected.norm(dim=0)
        return torch.where(length > 0, observed @ expected / length, torch.zeros_like(length)).tolist()

    def of(self, scores: Tensor) -> dict[str, Any]:
        """Return the figures of a map, `(H, W)`, by their names in a `Receipt`, without covering.

        Insertion and deletion use two baselines, 10 steps and the trapezoidal rule.
        """
        measured = self._measure(ranking(scores.to(self._image.device), self._seed))
        chance, edge = self.chance, self.edges
        insertion, deletion = (
            _mean(getattr(random, way) for random in chance) for way in ("insertion", "deletion")
        )
        return {
            "insertion": measured.insertion,
            "deletion": measured.deletion,
            "insertion_chance": insertion,
            "deletion_chance": deletion,
            "insertion_edges": edge.insertion,
            "deletion_edges": edge.deletion,
            "insertion_ratio": _ratio(measured.insertion, insertion),
            "deletion_ratio": _ratio(measured.deletion, deletion),
            "percentile": percentile(measured.gain, [random.gain for random in chance]),
            "road": measured.road,
            # In a random order the most and the least relevant pixels are exchangeable.
            "road_chance": 0.0 if measured.road is not None else None,
            "road_edges": edge.road,
            "road_percentile": percentile(measured.road, [random.road for random in chance]),
            "ties": share_of_ties(scores),
            "curves": measured.curves,
        }

    @staticmethod
    def passes(n_maps: int) -> int:
        """Return the number of passes of `of` for `n_maps` maps, references included."""
        curves, removals = 2 * 2 * (STEPS - 1), 2 * len(REMOVED)
        return (n_maps + N_RANDOM + 1) * (curves + removals)

    @cached_property
    def chance(self) -> tuple[Measured, ...]:
        """Random rankings, the same for every map: of single pixels, and of patches of several sizes.

        Patches are needed because covering neighbouring pixels together has an effect by itself.
        """
        size, device = self._size, self._image.device
        ranks = (
            random_ranking(size, self._seed + 1 + i, device, _COARSE[i % len(_COARSE)])
            for i in range(N_RANDOM)
        )
        return tuple(self._measure(places) for places in ranks)

    @cached_property
    def edges(self) -> Measured:
        """The image's edges, measured like a map."""
        return self._measure(ranking(edges(self._image), self._seed))

    @property
    def _size(self) -> tuple[int, int]:
        return self._image.shape[-2], self._image.shape[-1]

    @cached_property
    def _baselines(self) -> dict[str, Tensor]:
        image = self._image
        mean = torch.zeros_like(image)
        if not self._is_normalised:
            mean = image.mean((-2, -1), keepdim=True).expand_as(image)
        return {"mean colour": mean, "blur": _blurred(image)}

    @cached_property
    def _ends(self) -> tuple[float, ...]:
        """The probability for the image, then for each baseline."""
        return tuple(self._say([self._image, *self._baselines.values()]))

    def _say(self, images: Iterable[Tensor]) -> Iterator[float]:
        """Yield the probability for each `(1, C, H, W)` image, with at most one batch in memory."""
        waiting = iter(images)
        while chunk := list(islice(waiting, self._batch)):
            with torch.no_grad():
                outputs = self._probability(torch.cat(chunk)).cpu().double()
            yield from outputs.tolist()

    def _measure(self, places: Tensor) -> Measured:
        counts = [round(places.numel() * step / STEPS) for step in range(STEPS + 1)]
        shares = tuple(count / places.numel() for count in counts)
        inner = iter(self._say(self._half_covered(places, counts[1:-1])))
        whole, *blanks = self._ends
        curves = []
        for name, blank in zip(self._baselines, blanks, strict=True):
            inserted = (blank, *islice(inner, STEPS - 1), whole)
            deleted = (whole, *islice(inner, STEPS - 1), blank)
            is_clear = whole - blank >= _LEAST_GAP * max(abs(whole), abs(blank)) > 0
            inserted, deleted = (
                tuple(min(max((value - blank) / (whole - blank), 0.0), 1.0) for value in values)
                if is_clear
                else ()
                for values in (inserted, deleted)
            )
            curves.append(Curves(name, blank, whole, shares, inserted, deleted))
        return Measured(
            _mean(area(shares, curve.inserted) for curve in curves),
            _mean(area(shares, curve.deleted) for curve in curves),
            tuple(curves),
            self._road(places),
        )

    def _half_covered(self, places: Tensor, counts: Sequence[int]) -> Iterator[Tensor]:
        """Yield, for each baseline, the image with only its first pixels visible, then with only these covered."""
        for blank in self._baselines.values():
            for count in counts:
                yield torch.where(places < count, self._image, blank)
            for count in counts:
                yield torch.where(places < count, blank, self._image)

    def _road(self, places: Tensor) -> float | None:
        """Return the mean of (LeRF - MoRF) / 2: least minus most relevant pixels removed first."""
        counts = [round(share * places.numel()) for share in REMOVED]
        most = [places >= count for count in counts]
        least = [places < places.numel() - count for count in counts]
        outputs = list(self._say(self._imputed([*least, *most])))
        return _mean(
            [(a - b) / 2 for a, b in zip(outputs[: len(REMOVED)], outputs[len(REMOVED) :], strict=True)]
        )

    def _imputed(self, masks: Sequence[Tensor]) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self._seed)
        for known in masks:
            yield impute(self._image, known, generator)


def _pooled(maps: Tensor) -> Tensor:
    """Pool maps `(N, H, W)` to at most 112 cells per side, enough for patches."""
    return F.adaptive_avg_pool2d(maps[:, None], (min(maps.shape[-2], 112), min(maps.shape[-1], 112)))[:, 0]


def area(shares: Sequence[float], curve: Sequence[float]) -> float | None:
    """Return the area under a curve by the trapezoidal rule; None for an empty curve."""
    if not curve:
        return None
    return torch.trapezoid(
        torch.tensor(curve, dtype=torch.float64), torch.tensor(shares, dtype=torch.float64)
    ).item()


def percentile(value: float | None, others: Sequence[float | None]) -> float | None:
    """Return the share of `others` below a value; equal ones count half."""
    numbers = [other for other in others if other is not None]
    if value is None or not numbers:
        return None
    return fmean((other < value) + 0.5 * (other == value) for other in numbers)


def _blurred(image: Tensor) -> Tensor:
    """Blur with a Gaussian of a twentieth of the short side, 11 pixels at 224: objects vanish, colours do not.

    With the 5 pixels of the paper, in a window of 11, many classes are still recognised.
    """
    sigma = min(image.shape[-2:]) / 20
    width = 2 * min(round(2.5 * sigma) + 1, min(image.shape[-2:]) - 1) + 1
    return gaussian_blur(image, [width, width], [sigma, sigma])


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(numbers) if numbers else None


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other is not None and other > 0 else None
