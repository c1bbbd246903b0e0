"""The image data set that the samples are trained on; `modelscope train` draws the same one."""

from collections.abc import Callable
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

from modelscope_cli.training.data import CLASSES, SEEDS_APART, SHAPES, SIZE, render

__all__ = ["CLASSES", "SEEDS_APART", "SHAPES", "SIZE", "Shapes", "draw", "render"]


def draw(label: int, seed: int = 0, size: int = SIZE) -> Image.Image:
    """Return a random image of the class `label`, `size` x `size` pixels, determined by the seed."""
    pixels = (render(label, seed, size) * 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


class Shapes(Dataset[tuple[Any, int]]):
    """`count` drawn images of all classes in turn. Item `index` is `(image, label)`, a function of seed and index.

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
            raise IndexError(f"image {index} of {self.count}")
        label = index % len(CLASSES)
        image = draw(label, self.seed * SEEDS_APART + index, self.size)
        return (self.transform(image) if self.transform else image), label
