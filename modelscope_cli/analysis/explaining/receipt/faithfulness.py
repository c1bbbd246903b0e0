"""Does the model need the pixels a map points at?

Covering shows the model random halves of the image, the same for every map, and correlates the evidence left in the
map with the model's score (Bhatt et al. 2020). Shifted copies of the map measure chance, without further passes.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, product
from statistics import NormalDist, stdev

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.explaining.receipt.rankings import moved_copies, random_halves
from modelscope_cli.lean import without_dynamo

with without_dynamo():
    from torchvision.transforms.functional import gaussian_blur

Function = Callable[[Tensor], Tensor]  # images (N, C, H, W) to a number each, (N,)

N_COPIES, N_BEATEN = 99, 95  # a map exceeds 95 of its copies by chance once in twenty times
# Standard error of that percentile in standard deviations of normal copies, 0.21: sqrt(p (1 - p) / n) / density
# (Kendall & Stuart, The Advanced Theory of Statistics, volume 1, section 10.10)
_ERROR = (0.95 * 0.05 / N_COPIES) ** 0.5 / NormalDist().pdf(NormalDist().inv_cdf(0.95))
N_HALVES = 8  # pairs of complementary halves per patch size and baseline
PATCHES = (1 / 8, 3 / 16)  # sides of patches relative to the short side of the image
COVERED = 2 * 2 * len(PATCHES) * N_HALVES
_LEAST_LOST = 0.1  # smallest relative drop of the score when half the image is covered


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
        """Take a preprocessed image, `(1, C, H, W)`, and what returns the probability of the target for at most
        `batch` images; `whole` is that of this one, if known. `is_normalised`: zero is the mean colour of the data;
        otherwise the image's mean colour is used."""
        self._probability, self._image, self._batch = probability, image.detach(), batch
        self._seed, self._is_normalised, self._whole = seed, is_normalised, whole

    def covering(self, scores: Tensor) -> dict[str, float | None]:
        """Return how well a map, `(H, W)`, predicts which halves of the image matter; names as in a `Receipt`."""
        nothing = dict.fromkeys(("covering", "covering_chance", "covering_margin"))
        if self.unmade or not bool(scores.isfinite().all()) or scores.min() == scores.max():
            return nothing
        rho, *others = self._correlations([scores.cpu(), *moved_copies(scores.cpu(), N_COPIES, self._seed)])
        chance, margin = sorted(others)[N_BEATEN - 1], _ERROR * stdev(others)
        return {"covering": rho, "covering_chance": chance, "covering_margin": margin}

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
        if not (math.isfinite(whole) and bool(outputs.isfinite().all())):
            return "the model's score of the half-covered image is not finite"
        lowest = outputs.view(len(PATCHES), -1, 2 * N_HALVES).mean((0, 2)).min().item()
        if whole - lowest >= _LEAST_LOST * max(abs(whole), abs(lowest)) > 0:
            return ""
        return "the model's score of the half-covered image is about the same or higher"

    @cached_property
    def _covered(self) -> tuple[Tensor, Tensor]:
        """The visible halves, `(N, H, W)` bool, and the probability for each: by patch size, then baseline."""
        # Every baseline covers halves of its own, which tells more than the same ones again.
        groups = list(product(PATCHES, self._baselines.values()))
        size = self._image.shape[-2], self._image.shape[-1]
        halves = random_halves(size, [patch for patch, _ in groups], N_HALVES, self._seed)
        blanks = (blank for _, blank in groups for _ in range(2 * N_HALVES))
        images = (
            torch.where(half.to(self._image.device), self._image, blank)
            for half, blank in zip(halves, blanks, strict=True)
        )
        return halves, torch.tensor(list(self._say(images)), dtype=torch.float64)

    def _correlations(self, maps: Sequence[Tensor]) -> list[float]:
        """Correlate the sum of each map over the halves with the model's output, both centred in each group."""
        halves, values = self._covered
        if ((values >= 0) & (values <= 1)).all():
            values = torch.logit(values, 1e-6)
        values = values.view(-1, 2 * N_HALVES)
        sums = _pooled(halves.float()).flatten(1) @ _pooled(torch.stack(list(maps)).float()).flatten(1).T
        groups = sums.double().view(len(values), -1, len(maps))
        expected = (groups - groups.mean(1, keepdim=True)).flatten(0, 1)
        observed = (values - values.mean(1, keepdim=True)).flatten()
        length = observed.norm() * expected.norm(dim=0)
        return torch.where(length > 0, observed @ expected / length, torch.zeros_like(length)).tolist()

    @cached_property
    def _baselines(self) -> dict[str, Tensor]:
        image = self._image
        mean = torch.zeros_like(image)
        if not self._is_normalised:
            mean = image.mean((-2, -1), keepdim=True).expand_as(image)
        # Blurred by a twentieth of the short side, 11 pixels at 224: objects vanish, colours do not. With the 5
        # pixels of the paper, in a window of 11, many classes are still recognised.
        sigma = min(image.shape[-2:]) / 20
        width = 2 * min(round(2.5 * sigma) + 1, min(image.shape[-2:]) - 1) + 1
        return {"mean colour": mean, "blur": gaussian_blur(image, [width, width], [sigma, sigma])}

    def _say(self, images: Iterable[Tensor]) -> Iterator[float]:
        """Yield the probability for each `(1, C, H, W)` image, with at most one batch in memory."""
        waiting = iter(images)
        while chunk := list(islice(waiting, self._batch)):
            with torch.no_grad():
                outputs = self._probability(torch.cat(chunk)).cpu().double()
            yield from outputs.tolist()


def _pooled(maps: Tensor) -> Tensor:
    """Pool maps `(N, H, W)` to at most 112 cells per side, enough for patches."""
    return F.adaptive_avg_pool2d(maps[:, None], (min(maps.shape[-2], 112), min(maps.shape[-1], 112)))[:, 0]
