"""The usual mistakes in preparing an image: each is a plan like the one that is meant, but for one thing."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.inputs.preset import Preset
from modelscope_cli.inputs.processor import ProcessorPreset
from modelscope_cli.lean import without_dynamo

with without_dynamo():
    from torchvision.transforms.functional import InterpolationMode

_FRACTIONS = (0.875, 1.0)
_METHODS = (InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
# Those that libraries of resizing make aliasing with, where they do not antialias.
_ALIASING = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
_VALUES = {
    "not normalised": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "ImageNet's values": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "-1..1": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "CLIP's values": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}


@dataclass(frozen=True, slots=True)
class Varied:
    """One way to prepare images.

    Attributes:
        name: what it is called; `kind`: `crop`, `resize`, `values`, `channels` or `turning`.
        what: what it does to an image, in words.
    """

    name: str
    kind: str
    what: str
    plan: Preprocessing


def variations(plan: Preprocessing, *, is_framed_alike: bool = True) -> tuple[Varied, ...]:
    """Return what differs from `plan` in one thing; what `plan` itself does is left out.

    Args:
        is_framed_alike: whether `plain(plan)` prepares an image as `plan` does. Where not, its size cannot be
            varied.
    """
    geometry = [*_crops(plan), *_resizes(plan)] if is_framed_alike else []
    return (*geometry, *_values(plan), *_channels(plan), _unturned(plan))


def plain(plan: Preprocessing) -> Preprocessing:
    """Return a plan whose preset is written out, for presets of torchvision and processors of transformers.

    It prepares an image as `plan` does, but where a processor does more than resize, crop and normalise.
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
        what = f"short side to {' x '.join(map(str, resized))}, centre crop {by}"
        if preset.mode != "center" or preset.resize_size != resized:
            yield _changed(
                plan, f"centre crop {fraction:g}", "crop", what, resize_size=resized, mode="center"
            )
    whole = {"resize_size": crop, "crop_size": crop}
    if preset.mode != "squash" or [preset.resize_size[0], preset.resize_size[-1]] != crop:
        yield _changed(plan, "squashed", "crop", f"the whole image to {by}", mode="squash", **whole)
    if preset.mode != "border":
        what = f"the whole image fitted into {by}, padded with the mean colour"
        yield _changed(plan, "letterbox", "crop", what, mode="border", **whole)


def _resizes(plan: Preprocessing) -> Iterator[Varied]:
    plan = plain(plan)
    own = plan.preset.interpolation
    for method in _METHODS:
        if method != own:
            yield _changed(plan, method.value, "resize", f"resized {method.value}", interpolation=method)
    if own in _ALIASING and plan.preset.antialias:
        what = f"resized {own.value} as a tensor is, without antialias"
        yield _changed(plan, "no antialias", "resize", what, antialias=False)


def _values(plan: Preprocessing) -> Iterator[Varied]:
    """Yield other means and standard deviations, which also say on which scale the pixels are.

    `(255 x - mean) / std` is `(x - mean / 255) / (std / 255)`.
    """
    known = {name: (_for(plan, mean), _for(plan, std)) for name, (mean, std) in _VALUES.items()}
    known["0..255, then normalised"] = _scaled(plan.mean, 255), _scaled(plan.std, 255)
    known["0..255"] = [0.0] * len(plan.mean), [1 / 255] * len(plan.mean)
    known["divided by 255 twice"] = _scaled(plan.mean, 1 / 255), _scaled(plan.std, 1 / 255)
    seen = [(plan.mean, plan.std)]
    for name, (mean, std) in known.items():
        if any(_is_close(mean, other) and _is_close(std, same) for other, same in seen):
            continue
        seen.append((mean, std))
        what = f"mean {_listed(mean)} std {_listed(std)}"
        if "255" in name:
            scale = "values of 0..1 divided by 255" if "twice" in name else "values of 0..255"
            what = scale + ("" if name == "0..255" else ", minus the mean, divided by the std")
        varied = _changed(plan, name, "values", what, mean=mean, std=std)
        yield replace(varied, plan=replace(varied.plan, mean=mean, std=std))


def _channels(plan: Preprocessing) -> Iterator[Varied]:
    if plan.mode == "RGB":
        what = "blue, green, red, as OpenCV reads an image"
        yield Varied("BGR", "channels", what, replace(plan, is_reversed=True))


def _unturned(plan: Preprocessing) -> Varied:
    return Varied("EXIF ignored", "turning", "not rotated as its EXIF says", replace(plan, is_turned=False))


def _changed(plan: Preprocessing, name: str, kind: str, what: str, **changes: Any) -> Varied:
    return Varied(name, kind, what, replace(plan, preset=_with(plan.preset, changes)))


def _with(preset: Any, changes: dict[str, Any]) -> Any:
    """Return a copy of a preset, torchvision's too, which are modules."""
    preset = copy.copy(preset)
    for name, value in changes.items():
        setattr(preset, name, value)
    return preset


def _for(plan: Preprocessing, values: tuple[float, ...]) -> list[float]:
    """Return a value a channel; one of gray has the mean of the three."""
    return list(values) if len(plan.mean) == len(values) else [sum(values) / len(values)] * len(plan.mean)


def _scaled(values: list[float], divisor: float) -> list[float]:
    return [value / divisor for value in values]


def _is_close(values: list[float], others: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6) for a, b in zip(values, others, strict=True))


def _listed(values: list[float]) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in values) + ")"
