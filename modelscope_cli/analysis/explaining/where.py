"""Where the evidence of a map lies, and whether several maps agree on it."""

import math
from collections.abc import Mapping
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.explaining.receipt.rankings import spearman
from modelscope_cli.records.explain import SCATTERED, EvidenceBox

_LINES = 16  # of a grid along a side, on which the sides of boxes lie
_COMPARED = 7  # cells along a side in which maps are compared: regions, not pixels
# Share of the image from which no place is named. A uniform map needs 1 / 2. Below 1 / 3 the evidence is more than
# twice as dense inside the box as outside; of maps of 14 x 14 random normal cells 1 % get there.
_NO_PLACE = 1 / 3
_ROWS, _COLUMNS = ("top", "", "bottom"), ("left", "", "right")


def evidence_box(scores: Tensor) -> EvidenceBox | None:
    """Return the smallest box with half of the positive values of a map, `(H, W)`; None if there are none.

    Its place is the ninth of the image with its centre. All boxes between the lines of a grid are compared.
    """
    scores = scores.double().clamp(min=0)
    total = float(scores.sum())
    if not 0 < total < math.inf:
        return None
    height, width = scores.shape
    down, across = (torch.linspace(0, side, _LINES + 1).round().long().unique() for side in scores.shape)
    sums = F.pad(scores.cumsum(0).cumsum(1), (1, 0, 1, 0))[down][:, across]
    strips = sums[None] - sums[:, None]  # from one row to another
    inside = strips[:, :, None] - strips[:, :, :, None]  # [top, bottom, left, right]
    rows, columns = down - down[:, None], across - across[:, None]
    areas = (rows.clamp(min=0)[:, :, None, None] * columns.clamp(min=0)).double()
    areas[(inside < total / 2 * (1 - 1e-9)) | (areas == 0)] = math.inf
    costs = areas - inside / total / 2  # of two boxes of one size that with more inside
    t, b, l, r = (costs == costs.min()).nonzero()[0].tolist()  # noqa: E741
    left, top, right, bottom = (int(side) for side in (across[l], down[t], across[r], down[b]))
    share = (right - left) * (bottom - top) / scores.numel()
    row, column = 3 * (top + bottom) // (2 * height), 3 * (left + right) // (2 * width)
    place = f"{_ROWS[row]} {_COLUMNS[column]}".strip() or "centre"
    return EvidenceBox(SCATTERED if share >= _NO_PLACE else place, share, (left, top, right, bottom))


def agreement(maps: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Return the mean rank correlation of each map with the others, `(rows, columns)`; None if there is none.

    Both are averaged over the cells of the coarser one, at most 7 x 7.
    """
    return {name: _mean_correlation(one, [maps[n] for n in maps if n != name]) for name, one in maps.items()}


def _mean_correlation(one: Tensor, others: list[Tensor]) -> float | None:
    rhos = []
    for other in others:
        coarse, fine = sorted((one, other), key=Tensor.numel)
        size = min(coarse.shape[0], _COMPARED), min(coarse.shape[1], _COMPARED)
        rhos.append(spearman(*(F.adaptive_avg_pool2d(x[None, None].double(), size) for x in (coarse, fine))))
    known = [rho for rho in rhos if rho is not None]
    return fmean(known) if known else None
