"""Noisy linear imputation (Rong et al. 2022, ROAD): removed pixels become the mean of what lies around them.

Each removed pixel is the sum of 1/6 of each direct and 1/12 of each diagonal neighbour, removed ones included; at
the border of the image the weights that are left are scaled up. That is a linear system, symmetric and positive
definite; conjugate gradients solve it from a start that is right at coarse scales.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

NOISE = 0.01
_MOST_SWEEPS = 500
_TOLERANCE = 1e-4  # of the residual, relative to the right side; a tenth of the noise and less in the pixels


def impute(image: Tensor, known: Tensor, generator: torch.Generator, noise: float = NOISE) -> Tensor:
    """Return the image with the pixels that are not known imputed, and noise added to those.

    Args:
        image: `(1, C, H, W)`.
        known: `(H, W)` bool; at least one is.
        noise: its standard deviation, in units of the image.
    """
    drawn = torch.randn(image.shape, generator=generator).to(image)
    return torch.where(known, image, linear_imputation(image.float(), known).to(image) + noise * drawn)


def linear_imputation(image: Tensor, known: Tensor, tolerance: float = _TOLERANCE) -> Tensor:
    """Solve for the pixels that are not known: `(1, C, H, W)` and `(H, W)` bool to `(1, C, H, W)`."""
    planes = image[0][:, None]  # the channels are as many systems with one matrix
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
    """Weighted sum of the eight neighbours; none beyond the border.

    (1, 2, 1) along both sides, but for the middle; slices take a quarter of the time of a convolution.
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
    """Fill holes with means of what is known around, taken at the finest scale at which anything is known there."""
    if known.all() or min(planes.shape[-2:]) < 2:
        return planes
    pooled = F.avg_pool2d(known, 2, ceil_mode=True)
    coarse = F.avg_pool2d(planes * known, 2, ceil_mode=True) / pooled.clamp_min(1e-6)
    filled = _from_coarse(coarse, (pooled > 0).to(planes.dtype))
    enlarged = F.interpolate(filled, planes.shape[-2:], mode="bilinear", align_corners=False)
    return torch.where(known > 0, planes, enlarged)
