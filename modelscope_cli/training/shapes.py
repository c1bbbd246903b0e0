"""An image data set that is drawn instead of downloaded: ten classes of shapes and textures.

Every image depends on (seed, index) alone, so the set needs no files and is the same everywhere:

    from modelscope_cli.training.shapes import CLASSES, Shapes
    held_out = Shapes(1000, seed=1)             # another seed, other images
    image, label = held_out[7]                  # a 96x96 PIL image and its class
    image.save(f"{CLASSES[label]}.png")
    train = Shapes(8000, transform=to_tensor)   # any function of the PIL image, for a DataLoader

Colour is independent of the class: foreground and background are random gradients under random noise.
The outlines are signed distances (negative inside, zero on the outline): the coverage of a pixel follows from
its distance to the outline.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

SIZE = 96
"""Side of a picture in pixels, unless told otherwise."""

SEEDS_APART = 1_000_003
"""The pictures of a set have consecutive seeds, so sets start far from each other."""

Distance = Callable[[Tensor, Tensor], Tensor]
"""From the coordinates x and y of each pixel (any shape) to its signed distance, in the same unit."""


def circle(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 0.9


def square(x: Tensor, y: Tensor) -> Tensor:
    return box(x, y, 0.8, 0.8)


def triangle(x: Tensor, y: Tensor) -> Tensor:
    slanted = x.abs() * math.cos(math.pi / 6) - y * math.sin(math.pi / 6)
    return torch.maximum(slanted, y) - 0.5


def star(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance to a star of five points: folding the plane leaves one straight edge."""
    turn = torch.atan2(x, -y).remainder(2 * math.pi / 5)
    turn = torch.minimum(turn, 2 * math.pi / 5 - turn)
    radius = torch.hypot(x, y)
    outer, inner, half_turn = 1.05, 0.46, math.pi / 5
    edge_x, edge_y = inner * math.cos(half_turn) - outer, inner * math.sin(half_turn)
    across = edge_x * radius * turn.sin() - edge_y * (radius * turn.cos() - outer)
    return -across / math.hypot(edge_x, edge_y)


def ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.72).abs() - 0.22


def cross(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(box(x, y, 0.28, 1.0), box(x, y, 1.0, 0.28))


def stripes(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance to bars along y with a period of 0.6, as wide as the gaps."""
    return (x.remainder(0.6) - 0.3).abs() - 0.15


def checkerboard(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance to fields in a column or in a row of stripes, but not in both."""
    columns, rows = stripes(x, y), stripes(y, x)
    return torch.maximum(torch.minimum(columns, rows), -torch.maximum(columns, rows))


def dots(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x.remainder(0.5) - 0.25, y.remainder(0.5) - 0.25) - 0.15


def waves(x: Tensor, y: Tensor) -> Tensor:
    return 0.8 * stripes(x + 0.16 * torch.sin(y * 7), y)


def box(x: Tensor, y: Tensor, half_width: float, half_height: float) -> Tensor:
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


SHAPES: tuple[Distance, ...] = (
    circle, square, triangle, star, ring, cross, stripes, checkerboard, dots, waves
)  # fmt: skip
CLASSES: tuple[str, ...] = tuple(shape.__name__ for shape in SHAPES)


def draw(label: int, seed: int = 0, size: int = SIZE) -> Image.Image:
    """Return a random image of the class `label`, `size` x `size` pixels, determined by the seed."""
    pixels = (render(label, seed, size) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def render(label: int, seed: int = 0, size: int = SIZE) -> Tensor:
    """Return the image of `draw` as a tensor `(3, size, size)` of 0..1."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(10, generator=generator).tolist()
    colours = torch.rand(4, 3, generator=generator)
    noise = torch.randn(3, size, size, generator=generator)

    position_x, position_y, angle, scale, *rest = spread
    sky_angle, ink_angle, softness, grain, stretch, mirror = rest
    # The image spans -1 to 1. Centre and scale keep the shape inside the centre crop of 7/8 of the side.
    axis = (torch.arange(size) + 0.5) * (2 / size) - 1
    across, down = axis[None, :], axis[:, None]
    radius = 0.4 + 0.35 * scale
    room = 0.9 - radius
    x = (across - room * (2 * position_x - 1)) * (1 if mirror < 0.5 else -1)
    y = (down - room * (2 * position_y - 1)) * (0.85 + 0.3 * stretch)
    x, y = _rotate(x, y, 2 * math.pi * angle)
    distance = SHAPES[label](x / radius, y / radius) * (radius * size / 2)  # in pixels

    # An edge of one pixel is just smooth; a wider one looks out of focus, equally so at every size.
    edge = 1 + 1.5 * softness * size / SIZE
    ink = (0.5 - distance / edge).clamp(0, 1)
    # Each channel of the foreground differs by 0.3 or more from the background, in either direction.
    first = colours[0]
    second = (first + 0.3 + 0.4 * colours[1]).remainder(1)
    background = _gradient(first, colours[2] - 0.5, 2 * math.pi * sky_angle, across, down)
    foreground = _gradient(second, colours[3] - 0.5, 2 * math.pi * ink_angle, across, down)
    picture = background + ink * (foreground - background)
    return picture.add_(noise, alpha=0.01 + 0.06 * grain).clamp_(0, 1)


def _rotate(x: Tensor, y: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    """Return the coordinates in a frame turned by `angle` radians."""
    cosine, sine = math.cos(angle), math.sin(angle)
    return cosine * x + sine * y, cosine * y - sine * x


def _gradient(colour: Tensor, change: Tensor, angle: float, across: Tensor, down: Tensor) -> Tensor:
    """Return a plane `(3, H, W)` of `colour` `(3,)` in the middle, shifting by up to `change / 4` either way."""
    along = math.cos(angle) * across + math.sin(angle) * down
    return colour[:, None, None] + 0.25 * change[:, None, None] * along


class Shapes(Dataset[tuple[Any, int]]):
    """`count` images of all classes in turn. Item `index` is `(image, label)`.

    Sets of different seeds share no image, so one seed serves to train and another one to test.
    """

    def __init__(
        self,
        count: int,
        seed: int = 0,
        size: int = SIZE,
        transform: Callable[[Image.Image], Any] | None = None,
    ) -> None:
        self.count, self.seed, self.size, self.transform = count, seed, size, transform

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < self.count:  # also what ends a plain `for` loop over the set
            raise IndexError(f"picture {index} of {self.count}")
        label = index % len(CLASSES)
        picture = draw(label, self.seed * SEEDS_APART + index, self.size)
        return (self.transform(picture) if self.transform else picture), label
