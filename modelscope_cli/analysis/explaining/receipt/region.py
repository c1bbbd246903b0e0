"""The region of an image given by `--box`, in the model's input."""

from dataclasses import dataclass
from typing import Self

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.preprocess import Preprocessing

_HINT = "--box 10,20,110,120   pixels of the image: left, top, right, bottom"


@dataclass(frozen=True, slots=True)
class Region:
    """A box, in pixels of the image file."""

    box: tuple[int, int, int, int]  # left, top, right, bottom, the last two exclusive

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `x0,y0,x1,y1`."""
        try:
            x0, y0, x1, y1 = (round(float(part)) for part in text.split(","))
        except (ValueError, OverflowError) as error:
            raise UsageError(f"'--box {text}' is not x0,y0,x1,y1 in pixels of the image", _HINT) from error
        if x0 >= x1 or y0 >= y1:
            raise UsageError(f"'--box {text}' is empty: x0 < x1 and y0 < y1 are needed", _HINT)
        return cls((x0, y0, x1, y1))

    def seen(self, size: tuple[int, int], preprocessing: Preprocessing) -> Tensor:
        """Return the region as a mask of the model's input, `(H, W)` bool, resized and cropped like the image.

        Args:
            size: width and height of the image file, after EXIF rotation.
        """
        typed = f"--box {','.join(map(str, self.box))}"
        mask = Image.new("L", size)
        mask.paste(255, self.box)
        prepared = preprocessing.apply(mask.convert(preprocessing.mode), typed)
        inside: Tensor = preprocessing.picture(prepared)[0] > 127
        if not inside.any():
            width, height = size
            middle = f"--box {width // 4},{height // 4},{width - width // 4},{height - height // 4}"
            raise UsageError(
                f"no part of '{typed}' is in the part of the image that the model sees "
                f"({preprocessing.words})",
                f"{middle}   the middle of it",
            )
        return inside.to(torch.bool)
