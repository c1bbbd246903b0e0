"""Choose the preprocessing: the preset of the weights with the user's changes, and common mistakes as variants."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.grammar import by, parse_channels, parse_size
from modelscope_cli.inputs.model_config import (
    channels_entering,
    configured_shape,
    configured_size,
    transformers_config,
)
from modelscope_cli.inputs.preprocess import (
    Letterbox,
    Preprocessing,
    Preset,
    ProcessorPreset,
    check_processor,
)
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.lean import without_dynamo

with without_dynamo():
    from torchvision.models import ResNet18_Weights
    from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights
    from torchvision.models.segmentation import FCN_ResNet50_Weights
    from torchvision.transforms.functional import InterpolationMode

# Presets are private classes, publicly accessible only through weights that use them.
_DEFAULT_WEIGHTS = {
    "segmentation": FCN_ResNet50_Weights.COCO_WITH_VOC_LABELS_V1,
    "detection": FasterRCNN_ResNet50_FPN_Weights.COCO_V1,
}
_IMAGENET_WEIGHTS = ResNet18_Weights.IMAGENET1K_V1
# Averages of the three ImageNet values, for models with one gray channel.
_GRAY_MEAN, _GRAY_STD = [0.449], [0.226]
_UNCHANGED = ([0.0] * 3, [1.0] * 3)  # for the presets of detection, which have no mean


def plan_preprocessing(
    request: InputRequest, family: str, transforms: Any | None, module: nn.Module | None
) -> Preprocessing:
    """Return the preset of the weights, or the family's usual one, with the requested changes."""
    if transforms is None and module is not None and transformers_config(module) is not None:
        check_processor(module)
    default = _DEFAULT_WEIGHTS.get(family, _IMAGENET_WEIGHTS)
    preset = copy.copy(transforms) if transforms is not None else default.transforms()
    if _makes_tiles(preset):
        changes = request.size_options() + request.value_options()
        if changes:
            own = type(preset.own.call).__name__
            message = f"'{changes[0]}' cannot be applied: {own} prepares images itself"
            raise UsageError(message, f"leave out {changes[0]}")
    sides = [] if transforms is not None else list(configured_size(module) or ())
    if sides and {*sides} != {*(getattr(preset, "crop_size", None) or ())}:
        preset.resize_size, preset.crop_size = sides[:1] if sides[0] == sides[1] else sides, sides
    _change_size(preset, request.size, family)
    n_channels = _count_channels(module, preset)
    _change_values(preset, request, n_channels, family)
    mean, std = _UNCHANGED if family == "detection" else (preset.mean, preset.std)
    return Preprocessing(
        preset=preset,
        mode="L" if n_channels == 1 else "RGB",
        mean=mean,
        std=std,
        brief=", ".join(_in_brief(preset, mean, std)),
        words=_describe(preset, n_channels) + _origin(preset, request),
        is_fixed_size=bool(getattr(preset, "crop_size", None))
        or len(getattr(preset, "resize_size", None) or ()) == 2,
    )


def _makes_tiles(preset: Any) -> bool:
    """Check for a processor of transformers that makes patches or tiles of an image, not its channels and sides."""
    return isinstance(preset, ProcessorPreset) and preset.own.mean is None


def _count_channels(module: nn.Module | None, preset: Any) -> int:
    stated = configured_shape(module)
    size = getattr(preset, "crop_size", None) or getattr(preset, "resize_size", None) or (224,)
    n_channels = channels_entering(module, (size[0], size[-1])) if stated is None else stated[-3]
    if n_channels not in {1, 3}:
        raise CannotRunError(
            f"the model's first convolution takes {n_channels} channels, but an image has 1 or 3",
            f"--input-shape 1,{n_channels},224,224   or give a tensor file (.pt, .npy, .safetensors)",
        )
    return n_channels


def _change_size(preset: Any, size_typed: str | None, family: str) -> None:
    if size_typed is None:
        return
    size = parse_size(size_typed)
    if not hasattr(preset, "resize_size"):
        raise _no_place_for(f"--size {size_typed}", family)
    preset.resize_size = list(size)
    if hasattr(preset, "crop_size"):
        preset.crop_size = [size[0], size[-1]]


def _change_values(preset: Any, request: InputRequest, n_channels: int, family: str) -> None:
    options = request.value_options()
    if not hasattr(preset, "mean"):
        if options:
            raise _no_place_for(options[0], family)
        return
    if n_channels == 1 and len(preset.mean) != 1:
        preset.mean, preset.std = _GRAY_MEAN, _GRAY_STD
    if request.mean is not None:
        preset.mean = parse_channels("--mean", request.mean, n_channels)
    if request.std is not None:
        preset.std = parse_channels("--std", request.std, n_channels)


def _no_place_for(option: str, family: str) -> UsageError:
    message = f"'{option}' does not apply: {family} models resize and normalise themselves"
    return UsageError(message, f"leave out {option}")


def _origin(preset: Any, request: InputRequest) -> str:
    """Describe the origin of the preset and the user's changes."""
    if not isinstance(preset, Preset):
        return ""
    changed = request.size_options() + request.value_options()
    return f" (from {preset.origin}{', except for ' + ' '.join(changed) if changed else ''})"


def _describe(preset: Any, n_channels: int) -> str:
    colours = "gray" if n_channels == 1 else "RGB"
    steps = [f"decode to 8-bit {colours} (alpha over white, 16-bit gray divided by 257)"]
    resize = getattr(preset, "resize_size", None)
    crop = getattr(preset, "crop_size", None)
    if isinstance(preset, Preset):
        steps += preset.words()
        resize = crop = None
    if _makes_tiles(preset):
        return ", ".join(steps)
    if resize:
        how = f"({preset.interpolation.value}, antialias)"
        steps.append(
            f"resize {f'short side to {resize[0]}' if len(resize) == 1 else f'to {by(resize)}'} {how}"
        )
    if crop and list(crop) != resize:
        steps.append(f"centre crop {crop[0]} x {crop[-1]}")
    steps.append("scale to 0..1")
    if hasattr(preset, "mean"):
        is_normalised = any(preset.mean) or any(value != 1 for value in preset.std)
        numbers = f"normalise mean {_listed(preset.mean)} std {_listed(preset.std)}"
        steps.append(numbers if is_normalised else "not normalised")
    return ", ".join(steps)


def _in_brief(preset: Any, mean: list[float], std: list[float]) -> list[str]:
    """Describe the preprocessing in a few words."""
    resize, crop = (list(getattr(preset, name, None) or ()) for name in ("resize_size", "crop_size"))
    imagenet = _IMAGENET_WEIGHTS.transforms()
    if isinstance(preset, Letterbox):
        return [*preset.words(), "not normalised"]
    if _makes_tiles(preset):
        return preset.words()
    steps = [f"resized to {_size(resize)}"] if resize else []
    if crop and crop != resize:
        steps.append(f"centre crop {_size(crop)}")
    if (list(mean), list(std)) == (imagenet.mean, imagenet.std):
        steps.append("ImageNet normalisation")
    else:
        steps.append("normalised" if any(mean) or any(value != 1 for value in std) else "not normalised")
    return steps


def _size(sides: list[int]) -> str:
    return str(sides[0]) if len(set(sides)) == 1 else by(sides)


def _listed(values: list[float], digits: str = "g") -> str:
    return "(" + ", ".join(f"{value:{digits}}" for value in values) + ")"


_FRACTIONS = (0.875, 1.0)
_METHODS = (InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
# Interpolations that alias without antialiasing.
_ALIASING = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
_VALUES = {
    "not normalised": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "ImageNet's values": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "-1..1": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "CLIP's values": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}


@dataclass(frozen=True, slots=True)
class Varied:
    """One way to prepare images."""

    name: str
    kind: str  # `crop`, `resize`, `values`, `channels` or `turning`
    what: str  # description of the change
    plan: Preprocessing


def variations(plan: Preprocessing, *, is_framed_alike: bool = True) -> tuple[Varied, ...]:
    """Return the variants of `plan` that differ in one step.

    Args:
        is_framed_alike: whether `plain(plan)` prepares an image as `plan` does; else its size cannot be varied.
    """
    geometry = [*_crops(plan), *_resizes(plan)] if is_framed_alike else []
    unturned = Varied("EXIF ignored", "turning", "EXIF rotation ignored", replace(plan, is_turned=False))
    return (*geometry, *_values(plan), *_channels(plan), unturned)


def plain(plan: Preprocessing) -> Preprocessing:
    """Return a plan with an explicit `Preset`, for torchvision's presets and transformers' processors.

    It is equivalent to `plan` unless a processor does more than resize, crop and normalise.
    """
    preset = plan.preset
    if type(preset) is Preset:
        return plan
    crop = list(preset.crop_size or preset.resize_size)
    is_squashed = isinstance(preset, ProcessorPreset) and len(preset.resize_size) == 2
    written = Preset(
        origin=getattr(preset, "origin", ""),
        resize_size=list(preset.resize_size) or crop,
        crop_size=[crop[0], crop[-1]] if crop else None,
        interpolation=preset.interpolation,
        mean=list(preset.mean),
        std=list(preset.std),
        mode="squash" if is_squashed else "center",
    )
    return replace(plan, preset=written)


def _crops(plan: Preprocessing) -> Iterator[Varied]:
    plan = plain(plan)
    preset: Preset = plan.preset
    crop = preset.crop_size
    if crop is None:
        return
    sides = crop[:1] if crop[0] == crop[1] else crop
    by = f"{crop[0]} x {crop[1]}"
    for fraction in _FRACTIONS:
        resized = [math.floor(side / fraction) for side in sides]
        description = f"short side to {' x '.join(map(str, resized))}, centre crop {by}"
        if preset.mode != "center" or preset.resize_size != resized:
            yield _changed(
                plan, f"centre crop {fraction:g}", "crop", description, resize_size=resized, mode="center"
            )
    whole = {"resize_size": crop, "crop_size": crop}
    if preset.mode != "squash" or [preset.resize_size[0], preset.resize_size[-1]] != crop:
        yield _changed(plan, "squashed", "crop", f"the whole image resized to {by}", mode="squash", **whole)
    if preset.mode != "border":
        description = f"the whole image fitted into {by}, padded with the mean colour"
        yield _changed(plan, "letterbox", "crop", description, mode="border", **whole)


def _resizes(plan: Preprocessing) -> Iterator[Varied]:
    plan = plain(plan)
    method_in_use = plan.preset.interpolation
    for method in _METHODS:
        if method != method_in_use:
            yield _changed(plan, method.value, "resize", f"resized {method.value}", interpolation=method)
    if method_in_use in _ALIASING and plan.preset.antialias:
        description = f"resized {method_in_use.value} as a tensor, without antialias"
        yield _changed(plan, "no antialias", "resize", description, antialias=False)


def _values(plan: Preprocessing) -> Iterator[Varied]:
    """Yield variants with other means and standard deviations, and with other pixel scales."""
    alternatives = {name: (_for(plan, mean), _for(plan, std)) for name, (mean, std) in _VALUES.items()}
    alternatives["0..255, then normalised"] = _scaled(plan.mean, 255), _scaled(plan.std, 255)
    alternatives["0..255"] = [0.0] * len(plan.mean), [1 / 255] * len(plan.mean)
    alternatives["divided by 255 twice"] = _scaled(plan.mean, 1 / 255), _scaled(plan.std, 1 / 255)
    earlier = [(plan.mean, plan.std)]
    for name, (mean, std) in alternatives.items():
        if any(_is_close(mean, other) and _is_close(std, same) for other, same in earlier):
            continue
        earlier.append((mean, std))
        description = f"mean {_listed(mean, '.3g')} std {_listed(std, '.3g')}"
        if "255" in name:
            scale = "values of 0..1 divided by 255" if "twice" in name else "values of 0..255"
            description = scale + ("" if name == "0..255" else ", minus the mean, divided by the std")
        varied = _changed(plan, name, "values", description, mean=mean, std=std)
        yield replace(varied, plan=replace(varied.plan, mean=mean, std=std))


def _channels(plan: Preprocessing) -> Iterator[Varied]:
    if plan.mode == "RGB":
        description = "channels in BGR order, as OpenCV reads them"
        yield Varied("BGR", "channels", description, replace(plan, is_reversed=True))


def _changed(plan: Preprocessing, name: str, kind: str, what: str, **changes: Any) -> Varied:
    return Varied(name, kind, what, replace(plan, preset=_with(plan.preset, changes)))


def _with(preset: Any, changes: dict[str, Any]) -> Any:
    """Return a copy of a preset with changes; torchvision's presets are modules."""
    preset = copy.copy(preset)
    for name, value in changes.items():
        setattr(preset, name, value)
    return preset


def _for(plan: Preprocessing, values: tuple[float, ...]) -> list[float]:
    """Return one value per channel; for gray the mean of the three."""
    return list(values) if len(plan.mean) == len(values) else [sum(values) / len(values)] * len(plan.mean)


def _scaled(values: list[float], divisor: float) -> list[float]:
    return [value / divisor for value in values]


def _is_close(values: list[float], others: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6) for a, b in zip(values, others, strict=True))
