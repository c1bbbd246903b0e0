"""Photos to decode: smooth noise of a seed, as large as asked, in JPEG."""

from pathlib import Path

import torch
from PIL import Image


def write_photos(folder: Path, n: int, size: tuple[int, int]) -> None:
    """Write `n` of them, called by their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for number in range(n):
        pixels = torch.randint(0, 256, (12, 16, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).resize(size).save(folder / f"{number:06}.jpg")
