"""What decoding changes in an image is said."""

from pathlib import Path

import pytest
from PIL import Image

from modelscope_cli.inputs.files import ListedImage
from modelscope_cli.inputs.image import conversions

GRAY, WHITE = "gray, so all 3 channels are equal", "transparent pixels become white"
TO_GRAY = "colour becomes gray, as the model takes 1 channel"


@pytest.mark.parametrize(("mode", "suffix", "of_rgb", "of_gray"), [
    ("RGB", "png", [], [TO_GRAY]),
    ("L", "png", [GRAY], []),
    ("1", "png", [GRAY], []),
    ("P", "png", [], [TO_GRAY]),
    ("LA", "png", [GRAY, WHITE], [WHITE]),
    ("RGBA", "webp", [WHITE], [TO_GRAY, WHITE]),
    ("I;16", "png", [GRAY, "16-bit values are divided by 257"], ["16-bit values are divided by 257"]),
    ("CMYK", "jpg", ["CMYK is converted without its colour profile"],
        [TO_GRAY, "CMYK is converted without its colour profile"]),
])  # fmt: skip
def test_each_change_is_named(mode: str, suffix: str, of_rgb: list, of_gray: list, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.new(mode, (4, 4)).save(path)
    for taken, changes in (("RGB", of_rgb), ("L", of_gray)):
        said = [f"images: {one}: '{path}'" for one in changes]
        assert conversions([ListedImage(str(path))], taken) == said
