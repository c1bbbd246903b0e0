"""From a decoded picture to what the model sees, and back to a picture."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.inputs.broken import TOO_LARGE, BrokenImageError
from modelscope_cli.inputs.grammar import MAX_PICTURE_PIXELS
from modelscope_cli.lean import without_dynamo

with without_dynamo():
    from torchvision.transforms.functional import pil_to_tensor

# RAFT needs sides divisible by 8, at least 128, and memory that grows with the square of the area;
# its authors report on frames of 520 x 960.
FLOW_STEP, FLOW_MIN_SIDE = 8, 128
_FLOW_MAX_PIXELS = 520 * 960
# Of a picture that would become enormous, only the middle is resized, this many times as long as it is wide.
_MAX_ASPECT = 8


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How every picture is prepared.

    Attributes:
        preset: a torchvision preset, called as it is; it alone decides what the model sees.
        mode: `RGB` or `L`, what to decode to.
        mean, std: one value a channel, what the preset normalises with.
        words: all of it in words and numbers; `brief`: the same in a few words.
        is_fixed_size: whether all pictures come out the same size.
        flow_size: height and width for optical flow, whose preset does not resize; None is their own.
        is_reversed: the preset is given blue, green, red, as OpenCV decodes an image.
        is_turned: the image is turned the way its EXIF data says, which is not for `apply` to do.
    """

    family: str
    preset: Any
    mode: str
    mean: list[float]
    std: list[float]
    words: str
    brief: str
    is_fixed_size: bool
    flow_size: tuple[int, int] | None
    is_reversed: bool = False
    is_turned: bool = True

    def apply(self, image: Image.Image, name: str) -> Tensor:
        """Return the picture as the model receives it, `(C, H, W)` float32 on the CPU.

        Raises:
            BrokenImageError: exit code 4; it would become too large.
        """
        if self.is_reversed:
            image = Image.merge("RGB", image.split()[::-1])
        if self.family == "optical_flow":
            height, width = self.flow_size or _own_flow_size(image.height, image.width)
            frame = image.resize((width, height), Image.Resampling.BILINEAR)
            return self.preset(frame, frame)[0]
        resize: list[int] = getattr(self.preset, "resize_size", None) or []
        if len(resize) == 1:  # the short side alone is set, so the long one could become enormous
            if self.is_fixed_size:
                image = _middle(image) if _becomes_enormous(image, resize[0]) else image
            elif _becomes_enormous(image, resize[0]):
                raise _too_large(image, name, resize[0])
        if self.family == "video":
            return self.preset(pil_to_tensor(image)[None]).squeeze(1)
        return self.preset(image)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Take the last step of `apply` alone, to the bit and differentiable: pixels of 0..1 to what the model
        receives, `(N, C, H, W)` float32 with `C` the length of `mean`, on their device."""
        mean, std = (pixels.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels - mean) / std

    def picture(self, prepared: Tensor) -> Tensor:
        """Undo the normalisation: `(C, H, W)` float32 to the `(3, H, W)` uint8 picture the model saw."""
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        pixels = prepared.mul(std).add_(mean).mul_(255).round_().clamp_(0, 255).to(torch.uint8)
        return pixels.expand(3, -1, -1)


def _becomes_enormous(image: Image.Image, short_side: int) -> bool:
    return image.width * image.height * (short_side / min(image.size)) ** 2 > MAX_PICTURE_PIXELS


def _too_large(image: Image.Image, name: str, short_side: int) -> BrokenImageError:
    long_side = round(max(image.size) * short_side / min(image.size))
    return BrokenImageError(
        TOO_LARGE,
        f"'{name}' ({image.width} x {image.height}) would become too large: short side {short_side},"
        f" long side {long_side}",
        f"--size {short_side},{short_side}",
    )


def _middle(image: Image.Image) -> Image.Image:
    """Cut a very long picture to its middle, in whole multiples of its short side.

    Resizing makes a whole number of pixels of each multiple, so what stays keeps its place to the pixel; its values
    may differ by a level, as the whole would be stretched a little to be a whole number of pixels long.
    """
    short, long = min(image.size), max(image.size)
    spare = (long - _MAX_ASPECT * short) // 2 // short * short
    if spare <= 0:
        return image
    left, top = (spare, 0) if image.width > image.height else (0, spare)
    return image.crop((left, top, image.width - left, image.height - top))


def _own_flow_size(height: int, width: int) -> tuple[int, int]:
    scale = min(1.0, math.sqrt(_FLOW_MAX_PIXELS / (height * width)))
    longest = _FLOW_MAX_PIXELS // FLOW_MIN_SIDE
    sides = [min(max(int(side * scale), FLOW_MIN_SIDE), longest) for side in (height, width)]
    return sides[0] // FLOW_STEP * FLOW_STEP, sides[1] // FLOW_STEP * FLOW_STEP
