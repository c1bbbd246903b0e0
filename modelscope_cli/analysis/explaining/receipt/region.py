"""The region of an image given by `--box` or `--mask`, in the model's input."""

from dataclasses import dataclass
from typing import Self

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.image import decode
from modelscope_cli.inputs.listing import ListedImage
from modelscope_cli.inputs.preprocess import Preprocessing

_HINT = "--box 10,20,110,120   pixels of the image: left, top, right, bottom"


@dataclass(frozen=True, slots=True)
class Region:
    """A box or a mask, in pixels of the image file."""

    typed: str  # the option, for messages
    box: tuple[int, int, int, int] | None = None  # left, top, right, bottom, the last two exclusive
    mask: Image.Image | None = None  # an image of mode `L`, inside where brighter than 127

    @classmethod
    def of_box(cls, text: str) -> Self:
        """Parse `x0,y0,x1,y1`."""
        try:
            x0, y0, x1, y1 = (round(float(part)) for part in text.split(","))
        except (ValueError, OverflowError) as error:
            raise UsageError(f"'--box {text}' is not x0,y0,x1,y1 in pixels of the image", _HINT) from error
        if x0 >= x1 or y0 >= y1:
            raise UsageError(f"'--box {text}' is empty: x0 < x1 and y0 < y1 are needed", _HINT)
        return cls(f"--box {text}", box=(x0, y0, x1, y1))

    @classmethod
    def of_file(cls, path: str) -> Self:
        """Read an image whose light pixels are inside."""
        return cls(f"--mask {path}", mask=decode(ListedImage(path), "L"))

    def seen(self, size: tuple[int, int], preprocessing: Preprocessing) -> Tensor:
        """Return the region as a mask of the model's input, `(H, W)` bool, resized and cropped like the image.

        Args:
            size: width and height of the image file, after EXIF rotation.
        """
        mask = self.mask
        if self.box is not None:
            mask = Image.new("L", size)
            mask.paste(255, self.box)
        if mask is None or mask.size != size:
            has = f"{mask.width} x {mask.height}" if mask else "no size"
            raise UsageError(
                f"'{self.typed}' has {has}, the image {size[0]} x {size[1]}",
                "give a mask of the image's own size",
            )
        prepared = preprocessing.apply(mask.convert(preprocessing.mode), self.typed)
        inside: Tensor = preprocessing.picture(prepared)[0] > 127
        if not inside.any():
            width, height = size
            middle = f"--box {width // 4},{height // 4},{width - width // 4},{height - height // 4}"
            raise UsageError(
                f"no part of '{self.typed}' is in the part of the image that the model sees "
                f"({preprocessing.words})",
                f"{middle}   the middle of it" if self.box else "give a mask that marks pixels there",
            )
        return inside.to(torch.bool)
