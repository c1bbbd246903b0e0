"""Methods that explain by the pixels of the image."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.layer import Map
from modelscope_cli.analysis.explaining.scored import Scored
from modelscope_cli.devices import widest_float
from modelscope_cli.hooks.fetch import fetch

_ENOUGH, _FIRST, _MOST = 0.02, 4, 32  # of integrated gradients: relative error; intervals at first, at most
_SIDES, _REFINED = 7, 0.25  # of occlusion: windows along the short side; the share of them that is refined

Window = tuple[int, int, int, int]  # top, left, bottom, right


def saliency(scored: Scored, image: Tensor) -> Map:
    """Return the largest |gradient| of each pixel's channels, unsigned; Simonyan et al. 2014, section 3."""
    ((_, gradient),) = scored.gradients(image)
    return Map(gradient[0].float().abs().amax(0).cpu(), "the largest |gradient| of a pixel's channels")


def input_x_gradient(scored: Scored, image: Tensor) -> Map:
    """Return the first-order contribution of each pixel to the logit; Shrikumar et al. 2016, section 3."""
    ((_, gradient),) = scored.gradients(image)
    return Map((image * gradient)[0].float().sum(0).cpu(), "the preprocessed pixel times its gradient")


def integrated_gradients(scored: Scored, image: Tensor, first: int = _FIRST, most: int = _MOST) -> Map:
    """Return the contribution of each pixel to the logit, from an image of zeros, the mean colour if normalised.

    Sundararajan et al. 2017, equation 1: the gradient integrated along the straight path from a blank image,
    times that path. The points are those of Fejer's second rule, `(1 - cos(k pi / n)) / 2`, dense near the ends but
    not at them, where the gradient of a norm may be singular; each has the weight `sin(k pi / n)`. The number of
    intervals is doubled from `first` to `most`, which reuses all points, until the sum is within 2 % of the
    difference of the two logits twice in a row: for networks of ReLUs convergence is not steady, and one good sum
    may be luck.
    """
    ends = scored.scores(torch.cat([torch.zeros_like(image), image]))
    total, brief = torch.zeros_like(image[0], dtype=widest_float(image.device)), None
    intervals, n_good, step = first, 0, 1
    while True:
        total += _summed(scored, image, _angles(intervals, step))
        parts = image[0].to(total) * total / _sines(intervals)
        scores, whole, cells = fetch([ends, parts.sum(), parts.sum(0).float()])
        brief = cells if brief is None else brief
        start, end = scores.tolist()
        gap = end - start
        error = abs(float(whole) - gap)
        n_good = n_good + 1 if error <= _ENOUGH * abs(gap) else 0
        if n_good == 2 or intervals * 2 > most:
            break
        intervals, step = 2 * intervals, 2
    return Map(
        cells,
        f"path from a zero image (score {start:.4g}) at {intervals - 1} points; completeness error {error:.2g}",
        completeness=error / abs(gap) if gap else None,
        brief=brief,
    )


def integrate_briefly(scored: Scored, image: Tensor) -> Tensor:
    """Return the first map of `integrated_gradients`, in the fewest points, `(H, W)`."""
    parts = image[0] * _summed(scored, image, _angles(_FIRST)) / _sines(_FIRST)
    return parts.sum(0).float().cpu()


def _angles(intervals: int, step: int = 1) -> list[float]:
    return [math.pi * n / intervals for n in range(1, intervals, step)]


def _sines(intervals: int) -> float:
    """Return the sum of the sines of all angles."""
    return 1 / math.tan(math.pi / (2 * intervals))


def _summed(scored: Scored, image: Tensor, angles: Sequence[float]) -> Tensor:
    """Return the weighted sum of the gradients at some angles of the path, `(C, H, W)`, in the widest dtype."""
    total = torch.zeros_like(image[0], dtype=widest_float(image.device))
    for first in range(0, len(angles), scored.batch):
        theta = torch.tensor(angles[first : first + scored.batch], dtype=torch.float64)[:, None, None, None]
        for _, gradient in scored.gradients(((1 - theta.cos()) / 2).to(image) * image):
            total += (gradient.to(total) * theta.sin().to(total)).sum(0)
    return total


def windows(size: tuple[int, int], side: int, stride: int) -> list[Window]:
    """Return windows that cover an image; the last of a row or column is clipped at the border."""
    tops, lefts = (range(0, max(length - side, 0) + min(stride, length), stride) for length in size)
    return [(y, x, min(y + side, size[0]), min(x + side, size[1])) for y in tops for x in lefts]


def occlude(scored: Scored, image: Tensor, hidden: list[Window], score: float) -> Tensor:
    """Return the mean drop of the logit over the windows that hide a pixel, `(H, W)` float64; NaN where none does.

    Hidden pixels are zero, the mean colour of normalised images.
    """
    total, count = torch.zeros(2, *image.shape[-2:], dtype=torch.float64)
    for first in range(0, len(hidden), scored.batch):
        some = hidden[first : first + scored.batch]
        copies = image.repeat(len(some), 1, 1, 1)
        for copy, (top, left, bottom, right) in zip(copies, some, strict=True):
            copy[:, top:bottom, left:right] = 0
        drops = (score - scored.scores(copies).cpu().double()).tolist()
        for (top, left, bottom, right), drop in zip(some, drops, strict=True):
            total[top:bottom, left:right] += drop
            count[top:bottom, left:right] += 1
    return total / count


def occlusion(scored: Scored, image: Tensor) -> Map:
    """Return the drop of the logit when a window around each pixel is hidden; Zeiler & Fergus 2014, section 4.2.

    Large windows everywhere, then windows of half the side where the large ones mattered.
    """
    size = (image.shape[-2], image.shape[-1])
    score = float(scored.scores(image))
    side = max(min(size) // _SIDES, 1)
    coarse = windows(size, side, side)
    cells = occlude(scored, image, coarse, score)
    strength = [abs(float(cells[top, left])) for top, left, _, _ in coarse]
    chosen = sorted(range(len(coarse)), key=lambda n: -strength[n])[: max(round(_REFINED * len(coarse)), 1)]
    half = -(-side // 2)
    fine = [
        (top + y, left + x, top + y_end, left + x_end)
        for top, left, bottom, right in (coarse[n] for n in chosen)
        for y, x, y_end, x_end in windows((bottom - top, right - left), half, half)
    ]
    detail = occlude(scored, image, fine, score)
    for n in chosen:
        top, left, bottom, right = coarse[n]
        part = detail[top:bottom, left:right] * (side / half) ** 2  # a small window hides less
        # Distribute within the window; the window's mean stays.
        cells[top:bottom, left:right] += part - part.mean()
    return Map(
        cells.float(),
        f"{side}-pixel windows, then {half}-pixel windows inside the {len(chosen)} that mattered most",
    )
