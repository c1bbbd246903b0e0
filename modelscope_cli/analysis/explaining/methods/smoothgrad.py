"""SmoothGrad: the gradient, averaged over noisy copies of the image.

Smilkov et al. 2017, section 3.2: noise of 10 to 20 % of the range of values. 25 copies, drawn from a seed.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, strongest
from modelscope_cli.analysis.explaining.scored import Scored

COPIES, SHARE = 25, 0.15


def noisy_copies(image: Tensor, seed: int) -> Iterator[Tensor]:
    """Yield noisy copies of an image, `(1, C, H, W)`."""
    generator = torch.Generator().manual_seed(seed)
    deviation = SHARE * float(image.max() - image.min())
    for _ in range(COPIES):
        yield image + deviation * torch.randn(image.shape, generator=generator).to(image)


def smoothgrad(scored: Scored, image: Tensor) -> Map:
    """Return the unsigned sensitivity of the logit to each pixel, averaged near the image."""
    total = torch.zeros_like(image[0], dtype=torch.float64)
    copies = noisy_copies(image, scored.seed)
    while some := list(itertools.islice(copies, scored.batch)):
        for _, gradient in scored.gradients(torch.cat(some)):
            total += gradient.double().sum(0)
    return Map(
        strongest((total / COPIES).float()),
        f"mean gradient over {COPIES} copies with noise (std {SHARE:.0%} of the value range)",
        steps=COPIES,
    )
