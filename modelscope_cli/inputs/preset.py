"""How the authors of a model of timm prepare an image for it, to the bit: from its `pretrained_cfg` to pixels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image
from torch import Tensor

from modelscope_cli.lean import without_dynamo

with without_dynamo():
    from torchvision.transforms import functional as F
    from torchvision.transforms.functional import InterpolationMode

Picture = TypeVar("Picture", Image.Image, Tensor)
# What timm assumes where a cfg leaves it open.
_DEFAULTS = {
    "input_size": (3, 224, 224),
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}


@dataclass(slots=True)
class Preset:
    """Resize, crop or pad, scale to 0..1, normalise. A copy of it is changed where a person asked for that.

    Attributes:
        origin: where it was read, in words.
        resize_size: the short side, or height and width.
        crop_size: height and width of what the model sees; None where nothing is cropped.
        mean, std: one value a channel, on the scale 0..1.
        mode: `center` covers the resize size and keeps the aspect ratio, `squash` gives that up, `border` fits the
            image into it and fills the rest with the mean colour.
        antialias: as Pillow always does; off it is what resizing a tensor does by itself, or OpenCV.
    """

    origin: str
    resize_size: list[int]
    crop_size: list[int] | None
    interpolation: InterpolationMode
    mean: list[float]
    std: list[float]
    mode: str = "center"
    antialias: bool = True

    def __call__(self, image: Image.Image) -> Tensor:
        """Return what the model receives: `(C, H, W)` float32 on the CPU."""
        framed = self.frame(image if self.antialias else F.pil_to_tensor(image))
        pixels = F.convert_image_dtype(framed if isinstance(framed, Tensor) else F.pil_to_tensor(framed))
        return F.normalize(pixels, self.mean, self.std)

    def frame(self, image: Picture) -> Picture:
        """Return the part of the image that the model sees, in its size."""
        _, height, width = F.get_dimensions(image)
        image = F.resize(image, self._resized(height, width), self.interpolation, antialias=self.antialias)
        if self.crop_size is None:
            return image
        if self.mode == "border":
            image = self._padded(image)
        return F.center_crop(image, self.crop_size)

    def words(self) -> list[str]:
        """Return its geometry in words, a step each."""
        height, width = self.resize_size[0], self.resize_size[-1]
        how = f"({self.interpolation.value}, {'' if self.antialias else 'no '}antialias)"
        if self.mode == "squash":
            steps = [f"squash to {height} x {width} {how}"]
        elif self.mode == "border":
            steps = [f"resize to fit {height} x {width} {how}, pad with the mean colour"]
        elif height == width:
            steps = [f"resize short side to {height} {how}"]
        else:
            steps = [f"resize to cover {height} x {width} {how}"]
        if self.crop_size is not None and (self.mode == "center" or self.crop_size != [height, width]):
            steps.append(f"centre crop {self.crop_size[0]} x {self.crop_size[-1]}")
        return steps

    def _resized(self, height: int, width: int) -> list[int]:
        target = self.resize_size[0], self.resize_size[-1]
        if self.mode == "squash":
            return list(target)
        if self.mode == "center" and target[0] == target[1]:
            return [
                target[0]
            ]  # torchvision makes the short side exactly this long, and cuts the long one off
        ratios = height / target[0], width / target[1]
        ratio = max(ratios) if self.mode == "border" else min(ratios)
        return [round(height / ratio), round(width / ratio)]

    def _padded(self, image: Picture) -> Picture:
        assert self.crop_size is not None
        own = F.get_dimensions(image)[1:]
        spare = [max(0, side - length) for side, length in zip(self.crop_size, own, strict=True)]
        sides = [spare[1] // 2, spare[0] // 2, (spare[1] + 1) // 2, (spare[0] + 1) // 2]
        return F.pad(image, sides, fill=[round(255 * value) for value in self.mean])


def preset_of(cfg: Mapping[str, Any]) -> Preset:
    """Return what a `pretrained_cfg` says, as `timm.data.create_transform` does for evaluation.

    Raises:
        TypeError, ValueError: values that are not what timm writes.
    """
    said = {**_DEFAULTS, **{key: value for key, value in cfg.items() if value}}
    size = [int(side) for side in said["input_size"]][-2:]
    mode = said["crop_mode"] if said["crop_mode"] in ("squash", "border") else "center"
    whole = [math.floor(side / said["crop_pct"]) for side in size]
    name = ".".join(str(cfg[key]) for key in ("architecture", "tag") if cfg.get(key))
    return Preset(
        origin="the model's pretrained_cfg" + (f", {name}" if name else ""),
        resize_size=whole[:1] if mode == "center" and whole[0] == whole[1] else whole,
        crop_size=size,
        interpolation=InterpolationMode(said["interpolation"]),
        mean=[float(value) for value in said["mean"]],
        std=[float(value) for value in said["std"]],
        mode=mode,
    )
