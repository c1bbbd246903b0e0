"""Integrated gradients: the gradient integrated along the straight path from a blank image, times that path.

Sundararajan et al. 2017, equation 1. The points are those of Fejer's second rule, `(1 - cos(k pi / n)) / 2`, dense
near the ends but not at them, where the gradient of a norm may be singular; each has the weight `sin(k pi / n)`.
The number of intervals is doubled, which reuses all points, until the sum is within 2 % of the difference of the
two logits twice in a row: for networks of ReLUs convergence is not steady, and one good sum may be luck.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, share_of
from modelscope_cli.analysis.explaining.scored import Scored

_ENOUGH, _FIRST, _MOST = 0.02, 8, 32  # relative error; intervals at first and at most


def integrated_gradients(scored: Scored, image: Tensor) -> Map:
    """Return the contribution of each pixel to the logit, from an image of zeros, the mean colour if normalised."""
    return integrate(scored, image, torch.zeros_like(image))


def integrate_briefly(scored: Scored, image: Tensor) -> Map:
    """Return the same with the fewest points, for comparisons."""
    return integrate(scored, image, torch.zeros_like(image), most=_FIRST)


def integrate(scored: Scored, image: Tensor, blank: Tensor, first: int = _FIRST, most: int = _MOST) -> Map:
    """Integrate from `blank` to `image` in `first` intervals, or more up to `most` until converged."""
    start, end = scored.scores(torch.cat([blank, image])).double().tolist()
    gap, way = end - start, (image - blank)[0].double()
    total = torch.zeros_like(way)
    intervals, n_good, step = first, 0, 1
    while True:
        total += _summed(scored, image, blank, [math.pi * n / intervals for n in range(1, intervals, step)])
        weights = 1 / math.tan(math.pi / (2 * intervals))  # the sum of all the sines
        cells = way * total / weights
        error = abs(float(cells.sum()) - gap)
        n_good = n_good + 1 if error <= _ENOUGH * abs(gap) else 0
        if n_good == 2 or intervals * 2 > most:
            break
        intervals, step = 2 * intervals, 2
    cells = cells.sum(0).float().cpu()
    return Map(
        cells,
        f"path from a zero image (logit {start:.4g}) in {intervals - 1} points; error of the sum {error:.2g}",
        adds_up=share_of(cells, end) if error <= abs(gap) else None,
        completeness=error / abs(gap) if gap else None,
        steps=intervals - 1,
    )


def _summed(scored: Scored, image: Tensor, blank: Tensor, angles: Sequence[float]) -> Tensor:
    """Return the weighted sum of the gradients at some angles of the path, `(C, H, W)` float64."""
    total = torch.zeros_like(image[0], dtype=torch.float64)
    for first in range(0, len(angles), scored.batch):
        theta = torch.tensor(angles[first : first + scored.batch], dtype=torch.float64)[:, None, None, None]
        shares = ((1 - theta.cos()) / 2).to(image)
        for _, gradient in scored.gradients(blank + shares * (image - blank)):
            total += (gradient.double() * theta.sin().to(total)).sum(0)
    return total
