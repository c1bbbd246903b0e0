"""Methods that explain by the pixels of the image."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.layer import Map, share_of, strongest
from modelscope_cli.analysis.explaining.scored import Scored
from modelscope_cli.devices import widest_float
from modelscope_cli.hooks.fetch import fetch

_ENOUGH, _FIRST, _MOST = 0.02, 8, 32  # of integrated gradients: relative error; intervals at first, at most
_SIDES, _REFINED = 7, 0.25  # of occlusion: windows along the short side; the share of them that is refined

Window = tuple[int, int, int, int]  # top, left, bottom, right


def saliency(scored: Scored, image: Tensor) -> Map:
    """Return the largest |gradient| of each pixel's channels, unsigned; Simonyan et al. 2014, section 3."""
    ((_, gradient),) = scored.gradients(image)
    return Map(strongest(gradient[0].float()), "the largest |gradient| of a pixel's channels")


def input_x_gradient(scored: Scored, image: Tensor) -> Map:
    """Return the first-order contribution of each pixel to the logit; Shrikumar et al. 2016, section 3."""
    ((score, gradient),) = scored.gradients(image)
    cells, score = fetch([(image * gradient)[0].float().sum(0), score])
    return Map(cells, "the preprocessed pixel times its gradient", adds_up=share_of(cells, float(score)))


def integrated_gradients(scored: Scored, image: Tensor) -> Map:
    """Return the contribution of each pixel to the logit, from an image of zeros, the mean colour if normalised.

    Sundararajan et al. 2017, equation 1: the gradient integrated along the straight path from a blank image,
    times that path. The points are those of Fejer's second rule, `(1 - cos(k pi / n)) / 2`, dense near the ends but
    not at them, where the gradient of a norm may be singular; each has the weight `sin(k pi / n)`. The number of
    intervals is doubled, which reuses all points, until the sum is within 2 % of the difference of the two logits
    twice in a row: for networks of ReLUs convergence is not steady, and one good sum may be luck.
    """
    return integrate(scored, image, torch.zeros_like(image))


def integrate_briefly(scored: Scored, image: Tensor) -> Map:
    """Return the same with the fewest points, for comparisons, without its error."""
    total = _summed(scored, image, torch.zeros_like(image), _angles(_FIRST))
    return Map((image[0].to(total) * total).sum(0).float().cpu() / _sines(_FIRST), "the fewest points")


def _angles(intervals: int, step: int = 1) -> list[float]:
    return [math.pi * n / intervals for n in range(1, intervals, step)]


def _sines(intervals: int) -> float:
    """Return the sum of the sines of all angles."""
    return 1 / math.tan(math.pi / (2 * intervals))


def integrate(scored: Scored, image: Tensor, blank: Tensor, first: int = _FIRST, most: int = _MOST) -> Map:
    """Integrate from `blank` to `image` in `first` intervals, or more up to `most` until converged."""
    ends, way = scored.scores(torch.cat([blank, image])), (image - blank)[0].to(widest_float(image.device))
    total = torch.zeros_like(way)
    intervals, n_good, step = first, 0, 1
    while True:
        total += _summed(scored, image, blank, _angles(intervals, step))
        parts = way * total / _sines(intervals)
        scores, whole, cells = fetch([ends, parts.sum(), parts.sum(0).float()])
        start, end = scores.tolist()
        gap = end - start
        error = abs(float(whole) - gap)
        n_good = n_good + 1 if error <= _ENOUGH * abs(gap) else 0
        if n_good == 2 or intervals * 2 > most:
            break
        intervals, step = 2 * intervals, 2
    return Map(
        cells,
        f"path from a zero image (score {start:.4g}) in {intervals - 1} points; completeness error {error:.2g}",
        adds_up=share_of(cells, end) if error <= abs(gap) else None,
        completeness=error / abs(gap) if gap else None,
        steps=intervals - 1,
    )


def _summed(scored: Scored, image: Tensor, blank: Tensor, angles: Sequence[float]) -> Tensor:
    """Return the weighted sum of the gradients at some angles of the path, `(C, H, W)`, in the widest dtype."""
    total = torch.zeros_like(image[0], dtype=widest_float(image.device))
    for first in range(0, len(angles), scored.batch):
        theta = torch.tensor(angles[first : first + scored.batch], dtype=torch.float64)[:, None, None, None]
        shares = ((1 - theta.cos()) / 2).to(image)
        for _, gradient in scored.gradients(blank + shares * (image - blank)):
            total += (gradient.to(total) * theta.sin().to(total)).sum(0)
    return total


def windows(size: tuple[int, int], side: int, stride: int) -> list[Window]:
    """Return windows that cover an image; the last of a row or column is clipped at the border."""
    tops, lefts = (range(0, max(length - side, 0) + min(stride, length), stride) for length in size)
    return [(y, x, min(y + side, size[0]), min(x + side, size[1])) for y in tops for x in lefts]


def falls(
    scored: Scored, image: Tensor, hidden: list[Window], score: float
) -> Iterator[tuple[Window, float]]:
    """Yield the drop of the logit when each window is zero, the mean colour of normalised images."""
    for first in range(0, len(hidden), scored.batch):
        some = hidden[first : first + scored.batch]
        copies = image.repeat(len(some), 1, 1, 1)
        for copy, (top, left, bottom, right) in zip(copies, some, strict=True):
            copy[:, top:bottom, left:right] = 0
        yield from zip(some, (score - scored.scores(copies).cpu().double()).tolist(), strict=True)


def occlude(scored: Scored, image: Tensor, hidden: list[Window], score: float) -> Tensor:
    """Return the mean drop over the windows that hide a pixel, `(H, W)` float64; NaN where none does."""
    total, count = torch.zeros(2, *image.shape[-2:], dtype=torch.float64)
    for (top, left, bottom, right), fall in falls(scored, image, hidden, score):
        total[top:bottom, left:right] += fall
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
        f"windows of {side} pixels, hidden one by one; then of {half} pixels within the "
        f"{len(chosen)} most important",
        steps=len(coarse) + len(fine) + 1,
    )
