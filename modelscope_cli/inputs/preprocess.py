"""Prepare a decoded image for the model, and turn a prepared tensor back into an image.

`Preset` is timm's evaluation transform of a `pretrained_cfg`, bit for bit. `ProcessorPreset` calls transformers'
image processor; its mean and std are measured on black and white images, as settings such as `rescale_factor` and
`include_top` combine in many ways.
"""

import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.grammar import MAX_IMAGE_PIXELS
from modelscope_cli.inputs.image import TOO_NARROW, Placement, UnreadableImageError
from modelscope_cli.lean import without_dynamo

with without_dynamo():
    from torchvision.transforms import functional as F
    from torchvision.transforms.functional import InterpolationMode

Picture = TypeVar("Picture", Image.Image, Tensor)
# timm's defaults for missing cfg entries.
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
    """Resize, crop or pad, scale to 0..1, normalise. Options change a copy."""

    origin: str  # where it was read, in words
    resize_size: list[int]  # the short side, or height and width
    crop_size: list[int] | None  # height and width of the crop; None without one
    interpolation: InterpolationMode
    # mean, std: one value per channel, on the scale 0..1
    mean: list[float]
    std: list[float]
    # `center` covers the resize size and keeps the aspect ratio, `squash` gives that up, `border` fits the
    # image into it and fills the rest with the mean colour
    mode: str = "center"
    antialias: bool = True  # as Pillow always does; False resizes like OpenCV, or a tensor by default

    def __call__(self, image: Image.Image) -> Tensor:
        """Return what the model receives: `(C, H, W)` float32 on the CPU."""
        framed = self.frame(image if self.antialias else F.pil_to_tensor(image))
        pixels = F.convert_image_dtype(framed if isinstance(framed, Tensor) else F.pil_to_tensor(framed))
        return F.normalize(pixels, self.mean, self.std)

    def frame(self, image: Picture) -> Picture:
        _, height, width = F.get_dimensions(image)
        image = F.resize(image, self._resized(height, width), self.interpolation, antialias=self.antialias)
        if self.crop_size is None:
            return image
        if self.mode == "border":
            image = self._padded(image)
        return F.center_crop(image, self.crop_size)

    def placement(self, size: tuple[int, int], seen: tuple[int, int]) -> Placement | None:
        """Return where a file of width and height `size` is in an input of height and width `seen`."""
        width, height = size
        target = self._resized(height, width)
        if len(target) == 1:
            short = min(size)
            target = [
                int(target[0] * side / short) if side > short else target[0] for side in (height, width)
            ]
        gaps = [(there - side) / 2 for there, side in zip(seen, target, strict=True)]
        top, left = (gap // 1 if gap > 0 else -round(-gap) for gap in gaps)
        return Placement(size, (target[1] / width, target[0] / height), (left, top))

    def words(self) -> list[str]:
        """Return its geometry in words, one step each."""
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
            # torchvision makes the short side exactly this long and truncates the long one
            return [target[0]]
        ratios = height / target[0], width / target[1]
        ratio = max(ratios) if self.mode == "border" else min(ratios)
        return [round(height / ratio), round(width / ratio)]

    def _padded(self, image: Picture) -> Picture:
        assert self.crop_size is not None
        image_size = F.get_dimensions(image)[1:]
        spare = [max(0, side - length) for side, length in zip(self.crop_size, image_size, strict=True)]
        sides = [spare[1] // 2, spare[0] // 2, (spare[1] + 1) // 2, (spare[0] + 1) // 2]
        return F.pad(image, sides, fill=[round(255 * value) for value in self.mean])


def preset_of(cfg: Mapping[str, Any]) -> Preset:
    """Return the preset of a `pretrained_cfg`, as `timm.data.create_transform` for evaluation."""
    cfg_values = {**_DEFAULTS, **{key: value for key, value in cfg.items() if value}}
    size = [int(side) for side in cfg_values["input_size"]][-2:]
    mode = cfg_values["crop_mode"] if cfg_values["crop_mode"] in ("squash", "border") else "center"
    whole = [math.floor(side / cfg_values["crop_pct"]) for side in size]
    name = ".".join(str(cfg[key]) for key in ("architecture", "tag") if cfg.get(key))
    return Preset(
        origin="the model's pretrained_cfg" + (f", {name}" if name else ""),
        resize_size=whole[:1] if mode == "center" and whole[0] == whole[1] else whole,
        crop_size=size,
        interpolation=InterpolationMode(cfg_values["interpolation"]),
        mean=[float(value) for value in cfg_values["mean"]],
        std=[float(value) for value in cfg_values["std"]],
        mode=mode,
    )


class Letterbox(Preset):
    """How ultralytics prepares a detector's image: fitted into the size, padded to a multiple of the stride."""

    stride: int = 32  # of the model's coarsest feature map
    is_stretched: bool = False  # fill the size and give up the aspect ratio, as for RT-DETR

    def frame(self, image: Picture) -> Picture:
        import numpy as np
        from ultralytics.data.augment import LetterBox

        size = self.resize_size[0], self.resize_size[-1]
        pixels = np.asarray(image) if isinstance(image, Image.Image) else image.permute(1, 2, 0).numpy()
        boxed: Any = LetterBox(size, not self.is_stretched, self.is_stretched, stride=self.stride)(
            image=pixels
        )
        if isinstance(image, Image.Image):
            return Image.fromarray(boxed)
        return torch.from_numpy(np.ascontiguousarray(boxed)).permute(2, 0, 1)

    def placement(self, size: tuple[int, int], seen: tuple[int, int]) -> Placement | None:
        (width, height), (rows, columns) = size, seen
        if self.is_stretched:
            return Placement(size, (columns / width, rows / height))
        gain = min(rows / height, columns / width)
        new_height, new_width = (max(round(side * gain), 1) for side in (height, width))
        offset = tuple(
            round((there - side) / 2 - 0.1) for there, side in ((columns, new_width), (rows, new_height))
        )
        return Placement(size, (new_width / width, new_height / height), (offset[0], offset[1]))

    def words(self) -> list[str]:
        height, width = self.resize_size[0], self.resize_size[-1]
        if self.is_stretched:
            return [f"squash to {height} x {width}"]
        return [f"fit into {height} x {width}, pad with gray to a multiple of {self.stride}"]


def yolo_preset(kind: str, size: tuple[int, int], stride: int) -> Preset:
    """Return how ultralytics prepares an image for a model of class `kind`."""
    values = ([0.0] * 3, [1.0] * 3)
    origin, linear = "ultralytics", InterpolationMode.BILINEAR
    if kind == "ClassificationModel":
        return Preset(origin, [size[0]], [*size], linear, *values)
    preset = Letterbox(origin, [*size], None, linear, *values)
    preset.stride, preset.is_stretched = stride, kind.startswith("RTDETR")
    return preset


_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True)
class OwnProcessor:
    """A processor's own settings; differences in the preset come from the user."""

    call: Any  # the processor, on the PIL backend: the torchvision one resizes a little differently
    resize_size: tuple[int, ...]  # as in `Preset`; empty for other ways to resize
    # mean, std: as in `Preset`; None if it does not scale and shift each channel
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


@dataclass(slots=True, kw_only=True)
class ProcessorPreset(Preset):
    """An image processor of transformers."""

    own: OwnProcessor

    def __call__(self, image: Image.Image) -> Tensor:
        """Return what the model receives: `(C, H, W)` float32 on the CPU."""
        tensor = _prepared(self.own.call, image, **self._changes())
        if tensor.ndim != 3 or self.own.mean is None or self.own.std is None:
            kind = type(self.own.call).__name__
            message = (
                f"{kind} turns images into {'x'.join(map(str, tensor.shape))}, not channels, height and width"
            )
            raise CannotRunError(
                message, "give a tensor file (.pt, .npy, .safetensors) with what the model takes"
            )
        if (tuple(self.mean), tuple(self.std)) == (self.own.mean, self.own.std):
            return tensor
        mean, std, own_mean, own_std = (
            torch.tensor(values)[:, None, None]
            for values in (self.mean, self.std, self.own.mean, self.own.std)
        )
        return (tensor * own_std + own_mean - mean) / std

    def placement(self, size: tuple[int, int], seen: tuple[int, int]) -> Placement | None:
        """Return where a file is in the input; None where the processor crops."""
        if self.crop_size is not None and getattr(self.own.call, "do_center_crop", False):
            return None
        width, height = size
        if type(self.own.call).__name__.startswith("Owlv2") and self.own.call.do_pad:
            width = height = max(size)  # padded to a square on the right and below, then resized
        return Placement(size, (seen[1] / width, seen[0] / height))

    def words(self) -> list[str]:
        """Return the processor's resizing in words, one step each."""
        call = self.own.call
        steps = [f"prepared by {type(call).__name__}"]
        if getattr(call, "do_resize", False):
            sizes = {**dict(call.size or {}), **self._changes().get("size", {})}
            named = [f"{key.replace('_', ' ')} {value}" for key, value in sizes.items() if value]
            share = getattr(call, "crop_pct", None)
            named += [f"crop percentage {share:g}"] if share else []
            target = f"resize to {', '.join(named)}" if named else "resize"
            steps.append(f"{target} ({self.interpolation.value})")
        if self.crop_size is not None and getattr(call, "do_center_crop", False):
            steps.append(f"centre crop {self.crop_size[0]} x {self.crop_size[-1]}")
        if getattr(call, "do_pad", False):
            steps.append("pad")
        return steps

    def _changes(self) -> dict[str, Any]:
        if tuple(self.resize_size) == self.own.resize_size:
            return {}
        sides = {"height": self.resize_size[0], "width": self.resize_size[-1]}
        if not getattr(self.own.call, "do_center_crop", False):
            return {"size": sides}
        size = {"shortest_edge": self.resize_size[0]} if len(self.resize_size) == 1 else sides
        return {"size": size, "crop_size": sides}


def processor_preset(module: nn.Module) -> ProcessorPreset | None:
    """Return the preset of a transformers model's local or cached files; None without usable ones."""
    where = getattr(module.config, "name_or_path", "")
    try:
        call = _processor(where)
    except Exception:  # no such file, or one from which its class cannot be made, which may raise anything
        return None
    resized, (mean, std) = _resize_size(call), _values(call)
    resample = Image.Resampling(getattr(call, "resample", None) or Image.Resampling.BILINEAR)
    crop = dict(call.crop_size) if getattr(call, "do_center_crop", False) and call.crop_size else {}
    return ProcessorPreset(
        origin=f"{Path(_file_of(where) or where).name} of {'' if os.path.isdir(where) else 'hf:'}{where}",
        resize_size=list(resized),
        crop_size=[crop["height"], crop["width"]] if crop.get("height") and crop.get("width") else None,
        interpolation=InterpolationMode(resample.name.lower()),
        mean=list(mean or (0.0,) * 3),
        std=list(std or (1.0,) * 3),
        own=OwnProcessor(call, resized, mean, std),
    )


def check_processor(module: nn.Module) -> None:
    """Refuse to prepare images if a transformers model's image processor cannot be used."""
    where = getattr(module.config, "name_or_path", "")
    file = _file_of(where)
    if file is None:
        return
    try:
        _processor(where)
    except Exception as error:
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")[:200] or type(error).__name__
        message = f"'{file}' (the image preprocessing of the model) cannot be used: {reason}"
        raise CannotRunError(message, f"python -m json.tool {shlex.quote(file)}") from error


def _processor(where: str) -> Any:
    from transformers import AutoImageProcessor

    if not where:
        raise OSError("it has no folder and no repository")
    return AutoImageProcessor.from_pretrained(
        where, backend="pil", local_files_only=True, trust_remote_code=False
    )


def _file_of(where: str) -> str | None:
    """Return the image processor file in a folder or a cached repository; None without one."""
    if os.path.isdir(where):
        files = [os.path.join(where, name) for name in _FILES]
        return next(filter(os.path.isfile, files), None)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = [try_to_load_from_cache(where, name) for name in _FILES] if where else []
    except HFValidationError:  # not a valid repository name
        return None
    return next((file for file in cached if isinstance(file, str)), None)


def _prepared(call: Any, image: Image.Image, **changes: Any) -> Tensor:
    tensor = torch.as_tensor(call(images=image, return_tensors="pt", **changes)["pixel_values"])
    tensor = tensor[0] if tensor.ndim == 3 else tensor  # patches
    while tensor.ndim > 3 and len(tensor) == 1:  # a batch of one clip of one frame
        tensor = tensor[0]
    return tensor.float()  # tiles or patches of an image have other dimensions, and are refused


def _values(call: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """Return mean and std on the scale 0..1, measured in the middle of a black and a white image."""
    try:
        black, white = (
            _prepared(call, Image.new("RGB", (64, 64), colour)).double() for colour in ("black", "white")
        )
        low, high = (tensor[:, tensor.shape[1] // 2, tensor.shape[2] // 2] for tensor in (black, white))
    except Exception:  # processors of video, pairs and text may raise anything for a single image
        return None, None
    if black.ndim != 3 or not bool((high > low).all()):
        return None, None
    mean, std = (values.tolist() for values in (-low / (high - low), 1 / (high - low)))
    return tuple(float(f"{value:.6g}") for value in mean), tuple(float(f"{value:.6g}") for value in std)


def _resize_size(call: Any) -> tuple[int, ...]:
    """Return height and width, or the short side; empty for other ways to resize."""
    size = dict(call.size) if getattr(call, "do_resize", False) and call.size else {}
    if size.get("height") and size.get("width"):
        return size["height"], size["width"]
    return (size["shortest_edge"],) if size.get("shortest_edge") else ()


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Preprocessing of every image."""

    preset: Any  # a torchvision preset, called unchanged; it alone decides the result
    mode: str  # `RGB` or `L`, the mode to decode to
    # mean, std: one value per channel, as the preset normalises
    mean: list[float]
    std: list[float]
    words: str  # full description
    brief: str  # short description
    is_fixed_size: bool  # whether all images come out the same size
    is_reversed: bool = False  # whether channels are blue, green, red, as OpenCV decodes an image
    is_turned: bool = True  # whether the EXIF orientation is applied, on decoding rather than in `apply`

    def apply(self, image: Image.Image, name: str) -> Tensor:
        """Return the image as the model receives it, `(C, H, W)` float32 on the CPU."""
        if self.is_reversed:
            image = Image.merge("RGB", image.split()[::-1])
        resize: list[int] = getattr(self.preset, "resize_size", None) or []
        scale = resize[0] / min(image.size) if len(resize) == 1 else 0.0  # the long side may become enormous
        if image.width * image.height * scale**2 > MAX_IMAGE_PIXELS:
            message = f"'{name}' ({image.width} x {image.height}) is too narrow: with short side {resize[0]},"
            message += f" its long side is {round(max(image.size) * scale):,}"
            raise UnreadableImageError(TOO_NARROW, message, f"--size {resize[0]},{resize[0]}")
        prepared: Tensor = self.preset(image)
        return prepared

    def placement(self, size: tuple[int, int], seen: tuple[int, int]) -> Placement | None:
        """Return where a file of width and height `size` is in an input of height and width `seen`; None if
        unknown."""
        preset, sides = self.preset, getattr(self.preset, "resize_size", None)
        if sides and not isinstance(preset, Preset):  # one of torchvision's
            mode = "center" if len(sides) == 1 else "squash"
            preset = Preset("", list(sides), None, InterpolationMode.BILINEAR, [], [], mode)
        if isinstance(preset, Preset):
            return preset.placement(size, seen)
        return Placement(size, (1, 1)) if size == seen[::-1] else None

    def normalize(self, pixels: Tensor) -> Tensor:
        """Apply the last step of `apply`, bit for bit and differentiably: pixels in 0..1 to model input, `(N, C, H,
        W)` float32 with `C` the length of `mean`, on their device."""
        mean, std = (pixels.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels - mean) / std

    def picture(self, prepared: Tensor) -> Tensor:
        """Undo the normalisation: `(C, H, W)` float32 to the `(3, H, W)` uint8 image the model saw."""
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        pixels = prepared.mul(std).add_(mean).mul_(255).round_().clamp_(0, 255).to(torch.uint8)
        return pixels.expand(3, -1, -1)
