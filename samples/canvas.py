"""A canvas painted through signed distances, as in `dataset`: what `harbour` and `composition` draw with.

Coordinates are pixels from the top left corner. A distance is negative inside a shape and counts pixels, so
a shape covers a pixel by ``0.5 - distance``: edges come out smooth without drawing at a multiple of the size.
"""

import math
from itertools import pairwise

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

Paint = str | Tensor
"""A colour as "#rrggbb", or a tensor which broadcasts to (3, H, W) with values from 0 to 1."""


class Canvas:
    def __init__(self, width: int, height: int, seed: int) -> None:
        self.width, self.height = width, height
        self.x = (torch.arange(width) + 0.5).expand(height, width)
        self.y = (torch.arange(height) + 0.5)[:, None].expand(height, width)
        self.pixels = torch.zeros(3, height, width)
        self.generator = torch.Generator().manual_seed(seed)

    def paint(self, distance: Tensor, paint: Paint, opacity: float | Tensor = 1.0, edge: float = 1.0) -> None:
        """Cover the inside of ``distance`` (H, W); an ``edge`` of many pixels makes a shadow or a haze."""
        self.blend((0.5 - distance / edge).clamp(0, 1) * opacity, paint)

    def blend(self, opacity: float | Tensor, paint: Paint) -> None:
        """Mix ``paint`` over the picture, by an opacity from 0 to 1 for all pixels or for each (H, W)."""
        self.pixels = torch.lerp(self.pixels, colour(paint).expand_as(self.pixels), torch.as_tensor(opacity))

    def glow(self, strength: Tensor, paint: Paint) -> None:
        """Add light: ``strength`` (H, W) times the colour, brightening what is dark the most."""
        self.pixels = 1 - (1 - self.pixels) * (1 - colour(paint) * strength).clamp(0, 1)

    def noise(self, rows: int, columns: int, octaves: int = 5, roughness: float = 0.5) -> Tensor:
        """Fractal noise (H, W), about -1 to 1. The coarsest octave has ``rows`` x ``columns`` bumps."""
        total = torch.zeros(1, 1, self.height, self.width)
        for octave in range(octaves):
            bumps = (min(self.height, rows << octave) + 1, min(self.width, columns << octave) + 1)
            values = torch.rand(1, 1, *bumps, generator=self.generator) * 2 - 1
            smooth = functional.interpolate(values, total.shape[2:], mode="bicubic", align_corners=True)
            total += roughness**octave * smooth
        return total[0, 0]

    def random(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * torch.rand((), generator=self.generator).item()

    def picture(self, grain: float = 0.0) -> Image.Image:
        """The finished picture, with a film ``grain`` of that standard deviation."""
        noise = torch.randn(self.height, self.width, generator=self.generator) * grain
        pixels = ((self.pixels + noise).clamp(0, 1) * 255).round().to(torch.uint8)
        return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def colour(paint: Paint) -> Tensor:
    """A "#rrggbb" as a tensor (3, 1, 1); a tensor stays as it is."""
    if isinstance(paint, Tensor):
        return paint
    return torch.tensor([int(paint[i : i + 2], 16) / 255 for i in (1, 3, 5)])[:, None, None]


def ramp(position: Tensor, *stops: tuple[float, str]) -> Tensor:
    """A gradient (3, H, W) through the colours of the ``stops`` at the values of ``position`` (H, W)."""
    result = colour(stops[0][1]).expand(3, *position.shape)
    for (start, _), (end, paint) in pairwise(stops):
        share = smoothstep((position - start) / (end - start))
        result = torch.lerp(result, colour(paint).expand_as(result), share)
    return result


def smoothstep(value: Tensor) -> Tensor:
    """From 0 below 0 to 1 above 1, without a kink."""
    value = value.clamp(0, 1)
    return value * value * (3 - 2 * value)


def polygon(x: Tensor, y: Tensor, *corners: tuple[float, float]) -> Tensor:
    """Distance to a convex polygon, corners in clockwise order as seen on the screen."""
    distance = torch.full_like(x, -math.inf)
    for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
        length = math.hypot(x2 - x1, y2 - y1)
        distance = torch.maximum(distance, ((x - x1) * (y2 - y1) - (y - y1) * (x2 - x1)) / length)
    return distance


def rectangle(x: Tensor, y: Tensor, left: float, top: float, right: float, bottom: float) -> Tensor:
    across, down = (x - (left + right) / 2).abs(), (y - (top + bottom) / 2).abs()
    return torch.maximum(across - (right - left) / 2, down - (bottom - top) / 2)


def disc(x: Tensor, y: Tensor, centre_x: float, centre_y: float, radius: float) -> Tensor:
    return torch.hypot(x - centre_x, y - centre_y) - radius


def line(x: Tensor, y: Tensor, start: tuple[float, float], end: tuple[float, float], width: float) -> Tensor:
    """Distance to a straight stroke with round ends, ``width`` pixels wide."""
    run_x, run_y = end[0] - start[0], end[1] - start[1]
    along = (((x - start[0]) * run_x + (y - start[1]) * run_y) / (run_x**2 + run_y**2)).clamp(0, 1)
    return torch.hypot(x - start[0] - along * run_x, y - start[1] - along * run_y) - width / 2
