"""How a model of transformers has its images prepared: by its own image processor.

It decides what the model sees. Its mean and std are read from what it makes of black and of white, as settings such
as `rescale_factor` and `include_top` can be combined in many ways.
"""

import os
import shlex
import sys
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.preset import Preset
from modelscope_cli.lean import without_dynamo

with without_dynamo():
    from torchvision.transforms.functional import InterpolationMode


_FILE = "preprocessor_config.json"


@dataclass(frozen=True, slots=True)
class Own:
    """What a processor does by itself; whatever differs in the preset was asked for by a person.

    Attributes:
        call: the processor, on the PIL backend: the torchvision one resizes a little differently.
        resize_size: as in `Preset`; empty where it is sized in another way.
        mean, std: as in `Preset`; None where it does not scale and shift each channel.
    """

    call: Any
    resize_size: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


@dataclass(slots=True, kw_only=True)
class ProcessorPreset(Preset):
    """An image processor of transformers."""

    own: Own

    def __call__(self, image: Image.Image) -> Tensor:
        """Return what the model receives: `(C, H, W)` float32 on the CPU.

        Raises:
            CannotRunError: the processor makes something else of an image (exit 4).
        """
        made = _prepared(self.own.call, image, **self._changes())
        if made.ndim != 3 or self.own.mean is None or self.own.std is None:
            kind = type(self.own.call).__name__
            message = (
                f"{kind} makes {'x'.join(map(str, made.shape))} of an image, not channels, height and width"
            )
            raise CannotRunError(
                message, "give a tensor file (.pt, .npy, .safetensors) with what the model takes"
            )
        if (tuple(self.mean), tuple(self.std)) == (self.own.mean, self.own.std):
            return made
        mean, std, own_mean, own_std = (
            torch.tensor(values)[:, None, None]
            for values in (self.mean, self.std, self.own.mean, self.own.std)
        )
        return (made * own_std + own_mean - mean) / std

    def words(self) -> list[str]:
        """Return what the processor does to the size, a step each."""
        call = self.own.call
        steps = [f"prepared by {type(call).__name__}"]
        if getattr(call, "do_resize", False):
            sizes = {**dict(call.size or {}), **self._changes().get("size", {})}
            named = [f"{key.replace('_', ' ')} {value}" for key, value in sizes.items() if value]
            if _counts_pixels(call) and call.size.get("shortest_edge"):
                named = [f"{call.size['shortest_edge']} to {call.size['longest_edge']} pixels in area"]
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
    """Return what the files beside a model of transformers say; None where there are none, here or in the cache,
    or none that can be used."""
    where = getattr(module.config, "name_or_path", "")
    try:
        call = _processor(where)
    except (
        Exception
    ):  # no such file, or one that its class cannot be made of: each class raises in its own way
        return None
    resized, (mean, std) = _resize_size(call), _values(call)
    resample = Image.Resampling(getattr(call, "resample", None) or Image.Resampling.BILINEAR)
    return ProcessorPreset(
        origin=f"{_FILE} of {where if os.path.isdir(where) else 'hf:' + where}",
        resize_size=list(resized),
        crop_size=_crop_size(call),
        interpolation=InterpolationMode(resample.name.lower()),
        mean=list(mean or (0.0,) * 3),
        std=list(std or (1.0,) * 3),
        own=Own(call, resized, mean, std),
    )


def check_processor(module: nn.Module) -> None:
    """Refuse to prepare images where a model of transformers says how, but not so that it can be done.

    Raises:
        CannotRunError: the file of its image processor is there and cannot be used (exit 4).
    """
    where = getattr(module.config, "name_or_path", "")
    file = _file_of(where)
    if file is None:
        return
    try:
        _processor(where)
    except Exception as error:
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")[:200] or type(error).__name__
        message = f"'{file}' says how images are prepared, and cannot be used: {reason}"
        raise CannotRunError(message, f"python -m json.tool {shlex.quote(file)}") from error


def _processor(where: str) -> Any:
    from transformers import AutoImageProcessor

    if not where:
        raise OSError("of no folder or repository")
    return AutoImageProcessor.from_pretrained(
        where, backend="pil", local_files_only=True, trust_remote_code=False
    )


def _file_of(where: str) -> str | None:
    """Return the file of an image processor in a folder, or in the cache of a repository; None without one."""
    if os.path.isdir(where):
        file = os.path.join(where, _FILE)
        return file if os.path.isfile(file) else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(where, _FILE) if where else None
    except HFValidationError:  # not a name that a repository may have
        return None
    return found if isinstance(found, str) else None


def _prepared(call: Any, image: Image.Image, **changes: Any) -> Tensor:
    made = torch.as_tensor(call(images=image, return_tensors="pt", **changes)["pixel_values"])
    return (made[0] if made.ndim > 2 else made).float()  # else the patches of all images, a row each


def _values(call: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """Return mean and std on the scale 0..1, by what becomes of black and of white in the middle of an image."""
    try:
        black, white = (
            _prepared(call, Image.new("RGB", (64, 64), colour)).double() for colour in ("black", "white")
        )
        low, high = (made[:, made.shape[1] // 2, made.shape[2] // 2] for made in (black, white))
    except (
        Exception
    ):  # processors of video, of pairs, of text: each raises in its own way where it gets one image
        return None, None
    if black.ndim != 3 or not bool((high > low).all()):
        return None, None
    mean, std = (values.tolist() for values in (-low / (high - low), 1 / (high - low)))
    return tuple(float(f"{value:.6g}") for value in mean), tuple(float(f"{value:.6g}") for value in std)


def _resize_size(call: Any) -> tuple[int, ...]:
    """Return height and width, or the short side; nothing where it is sized in another way."""
    if _counts_pixels(call):
        return ()
    size = dict(call.size) if getattr(call, "do_resize", False) and call.size else {}
    if size.get("height") and size.get("width"):
        return size["height"], size["width"]
    return (size["shortest_edge"],) if size.get("shortest_edge") else ()


def _counts_pixels(call: Any) -> bool:
    """Tell a processor whose shortest and longest edge are the fewest and most pixels, as of Qwen2-VL: each that
    sizes an image so has the function `smart_resize` beside it."""
    return hasattr(sys.modules.get(type(call).__module__), "smart_resize")


def _crop_size(call: Any) -> list[int] | None:
    size = dict(call.crop_size) if getattr(call, "do_center_crop", False) and call.crop_size else {}
    return [size["height"], size["width"]] if size.get("height") and size.get("width") else None
