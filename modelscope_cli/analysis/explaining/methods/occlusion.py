"""Occlusion: the drop of the logit when a window of the image is hidden; Zeiler & Fergus 2014, section 4.2.

Large windows everywhere, then windows of half the side where the large ones mattered.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map
from modelscope_cli.analysis.explaining.scored import Scored

_SIDES, _REFINED = 7, 0.25  # windows along the short side; the share of them that is refined

Window = tuple[int, int, int, int]  # top, left, bottom, right


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
        yield from zip(some, (score - scored.scores(copies).double()).tolist(), strict=True)


def occlude(scored: Scored, image: Tensor, hidden: list[Window], score: float) -> Tensor:
    """Return the mean drop over the windows that hide a pixel, `(H, W)` float64; NaN where none does."""
    total, count = torch.zeros(2, *image.shape[-2:], dtype=torch.float64)
    for (top, left, bottom, right), fall in falls(scored, image, hidden, score):
        total[top:bottom, left:right] += fall
        count[top:bottom, left:right] += 1
    return total / count


def occlusion(scored: Scored, image: Tensor) -> Map:
    """Return the drop of the logit when the surroundings of each pixel are hidden."""
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
        f"windows of {side} pixels, hidden one by one; windows of {half} pixels in the {len(chosen)} most "
        "important ones",
        steps=len(coarse) + len(fine) + 1,
    )
