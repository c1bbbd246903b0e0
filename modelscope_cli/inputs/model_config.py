"""Read a module's configuration: input size, preprocessing, classes; else the usual input size.

timm's models have a `pretrained_cfg`, transformers' a `config`; any module with one of these is read.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from modelscope_cli.hooks.other_shapes import USUAL_SIZES, image_shape_taken, stated_size
from modelscope_cli.hooks.selection import gets_through
from modelscope_cli.inputs.preprocess import Preset, preset_of, processor_preset, yolo_preset
from modelscope_cli.records.run import Shape

# Parts of a composite config that describe images.
_IMAGE_CONFIGS = ("vision_config", "image_config", "backbone_config", "encoder")


def configured_shape(module: nn.Module | None) -> Shape | None:
    """Return the shape of one input without the batch dimension; None if not configured.

    `(C, H, W)`; `(T, C, H, W)` for the video models of transformers. Exported programs state their own.
    """
    if (stated := getattr(module, "input_shape", None)) is not None and hasattr(module, "model"):
        return tuple(stated)
    exported: Any = getattr(module, "exported_shapes", ())
    if len(exported) == 1:
        return tuple(exported[0][1:])
    if (yolo := yolo_of(module)) is not None:
        return (yolo.yaml.get("channels", 3), *_yolo_size(yolo))
    cfg = _cfg(module)
    return _shape_in(transformers_config(module)) if cfg is None else tuple(cfg["input_size"])


def configured_size(module: nn.Module | None) -> tuple[int, int] | None:
    """Return height and width of the images of a model: as configured, else as an attribute of it says."""
    if (shape := configured_shape(module)) is not None:
        return shape[-2], shape[-1]
    return stated_size((module, getattr(module, "visual", None), getattr(module, "config", None)))


def size_by_trial(module: nn.Module) -> int | None:
    """Return a usual side of square images with which the forward of a model succeeds on the meta device.

    Returns:
        None if its configuration says the size, it takes the default one, or no usual side was found.
    """
    usual = _DEFAULT_SIZE["custom"]
    if configured_size(module) is not None or isinstance(first_layer(module), nn.Conv3d):
        return None
    given = torch.empty(1, channels_entering(module, usual), *usual, dtype=_dtype(module), device="meta")
    taken = image_shape_taken(module, given) or given.shape
    return taken[2] if taken[2] == taken[3] != usual[1] and taken[2] in USUAL_SIZES else None


def configured_preset(module: nn.Module | None) -> Preset | None:
    """Return the configured preprocessing; None if there is none or it is not understood."""
    if module is not None and transformers_config(module) is not None:
        return processor_preset(module)
    if (yolo := yolo_of(module)) is not None:
        return yolo_preset(type(yolo).__name__, _yolo_size(yolo), int(yolo.stride.max()))
    cfg = _cfg(module)
    try:
        return None if cfg is None else preset_of(cfg)
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class ConfiguredOutputs:
    """The configured output of a module."""

    n_classes: int | None = None  # None if not configured
    has_several_labels: bool = False  # multi-label: each class is decided independently
    has_no_classes: bool = False  # it has no head and returns features


def configured_outputs(module: nn.Module | None) -> ConfiguredOutputs:
    """Return the configured output of a module; the defaults if not configured."""
    config = transformers_config(module)
    if config is not None:
        is_several = getattr(config, "problem_type", None) == "multi_label_classification"
        return ConfiguredOutputs(getattr(config, "num_labels", None), is_several)
    if _cfg(module) is None:
        return ConfiguredOutputs()
    n_classes = getattr(module, "num_classes", None)
    return ConfiguredOutputs(n_classes, has_no_classes=n_classes == 0)


def configured_labels(module: nn.Module | None) -> tuple[str, ...] | None:
    """Return the class names in order; None if unknown.

    timm's models have none: they get the names of the ImageNet version with as many classes.
    """
    if (yolo := yolo_of(module)) is not None:
        labels = tuple(str(yolo.names[index]) for index in sorted(yolo.names))
        return None if labels == tuple(map(str, range(len(labels)))) else labels  # placeholders
    cfg = _cfg(module)
    if cfg is None:
        return _labels_in(transformers_config(module))
    names, described = cfg.get("label_names"), cfg.get("label_descriptions")
    n_classes = getattr(module, "num_classes", cfg.get("num_classes"))
    if names and len(names) == n_classes:
        return tuple(str((described or {}).get(name, name)) for name in names)
    timm = sys.modules.get("timm")
    if timm is None or not type(module).__module__.startswith("timm."):
        return None
    subset = timm.data.infer_imagenet_subset({"num_classes": n_classes})
    return tuple(timm.data.ImageNetInfo(subset).label_descriptions()) if subset else None


def yolo_of(module: nn.Module | None) -> Any:
    """Return a model of ultralytics; None for others."""
    is_theirs = type(module).__module__.startswith("ultralytics.") and hasattr(module, "yaml")
    return module if is_theirs and isinstance(getattr(module, "names", None), dict) else None


def _yolo_size(yolo: Any) -> tuple[int, int]:
    """Return height and width of the images it was trained on, else the usual ones of its task."""
    args = getattr(yolo, "args", None) or {}
    size = args.get("imgsz") if isinstance(args, Mapping) else getattr(args, "imgsz", None)
    size = size or (224 if type(yolo).__name__ == "ClassificationModel" else 640)
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def _cfg(module: nn.Module | None) -> dict[str, Any] | None:
    """Return the `pretrained_cfg` of a module, with its actual size and channels."""
    for name in ("pretrained_cfg", "default_cfg"):
        cfg: Any = getattr(module, name, None)
        cfg = cfg.to_dict() if hasattr(cfg, "to_dict") else cfg
        size = cfg.get("input_size") if isinstance(cfg, Mapping) else None
        if isinstance(size, tuple | list) and [*map(type, size)] == [int] * 3:
            return {**cfg, "input_size": _built_for(module, cfg["input_size"])}
    return None


def transformers_config(module: nn.Module | None) -> Any:
    """Return the `config` of a transformers model, without importing the library; None for others."""
    transformers = sys.modules.get("transformers")
    is_theirs = transformers is not None and isinstance(module, transformers.PreTrainedModel)
    return module.config if is_theirs else None  # type: ignore[union-attr]


def _shape_in(config: Any) -> Shape | None:
    for part in (config, *(getattr(config, name, None) for name in _IMAGE_CONFIGS)):
        size = getattr(part, "image_size", None) or getattr(part, "crop_size", None)
        if size:
            height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
            image = (getattr(part, "num_channels", 3), height, width)
            n_frames = getattr(part, "num_frames", None) or getattr(part, "frames_per_clip", None)
            return (n_frames, *image) if n_frames else image
    return None


def _labels_in(config: Any) -> tuple[str, ...] | None:
    labels = getattr(config, "id2label", None) or {}
    names = tuple(str(labels.get(index)) for index in range(len(labels)))
    # Placeholders that transformers uses for unnamed classes.
    is_made_up = all(name == f"LABEL_{index}" for index, name in enumerate(names))
    return None if is_made_up or set(labels) != set(range(len(labels))) else names


def _built_for(module: nn.Module | None, size: Any) -> tuple[int, ...]:
    """Return the channels and size of an input: the cfg's, unless the model was built for others."""
    model_args = getattr(module, "_model_args", None) or {}
    side = model_args.get("img_size")
    height, width = size[1:] if side is None else (side, side) if isinstance(side, int) else side
    return model_args.get("in_chans") or size[0], height, width


# torchvision's published figures for video and flow models use these.
CLIP_FRAMES = 16
_FLOW_SIZE = (512, 512)

_DEFAULT_SIZE = {
    "custom": (224, 224),
    "segmentation": (520, 520),
    "video": (112, 112),
    "detection": (800, 800),
}


def natural_shapes(
    family: str, transforms: Any | None, module: nn.Module | None, batch: int
) -> tuple[Shape, ...]:
    """Return the shape of each input of `family`; for detection, of each image in the list.

    `(N, 3, H, W)` for images, `(N, 3, T, H, W)` for video, two `(N, 3, H, W)` for optical flow, `batch`
    times `(3, H, W)` for detection, `(N, features)` for a custom model that starts with a linear layer. The
    module's own configuration takes precedence.
    """
    exported: Any = getattr(module, "exported_shapes", ())
    if exported:
        return tuple((first if type(first) is int else batch, *rest) for first, *rest in exported)
    stated = configured_shape(module)
    if stated is not None:
        return ((batch, *stated),)
    size = _natural_size(family, transforms, module)
    if family == "detection":
        return ((3, *size),) * batch
    if family == "optical_flow":
        return ((batch, 3, *size),) * 2
    if family == "video":
        return ((batch, 3, CLIP_FRAMES, *size),)
    first = first_layer(module)
    if module is not None and isinstance(first, nn.Linear):
        row, image = (first.in_features,), (3, *size)
        given = torch.empty(1, *image, dtype=_dtype(module), device="meta")
        is_of_patches = not _takes(module, first, (1, *row)) and image_shape_taken(module, given) is not None
        return ((batch, *(image if is_of_patches else row)),)
    if isinstance(first, nn.Conv3d):
        return ((batch, first.in_channels, CLIP_FRAMES, *_DEFAULT_SIZE["video"]),)
    return ((batch, channels_entering(module, size), *size),)


def takes_clips(module: nn.Module | None, family: str) -> bool:
    """Tell whether a model takes clips, volumes or pairs of images rather than single ones."""
    if family in ("video", "optical_flow"):
        return True
    shape, first = configured_shape(module), first_layer(module)
    if family != "custom" or shape is not None or not isinstance(first, nn.Conv3d):
        return family == "custom" and shape is not None and len(shape) == 4
    n_channels = first.in_channels  # a model may make a clip of one frame of an image
    return n_channels == 1 or not _takes(module, first, (1, n_channels, 64, 64))


def channels_entering(module: nn.Module | None, size: tuple[int, int]) -> int:
    """Return the number of image channels that the first layer of a model takes.

    Those of its first convolution, unless a preceding operation makes them from three or one, such as a
    space-to-depth stem, a conversion to gray, or coordinates beside the image; three if the model takes both.
    """
    first = first_layer(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear))
    if first is None:
        return 3
    n_channels = getattr(first, "in_channels", 3)
    choices = dict.fromkeys((3, n_channels, 1))
    fitting = (
        n for n in choices if not isinstance(first, nn.Conv3d) and _takes(module, first, (1, n, *size))
    )
    return next(fitting, 3 if isinstance(first, nn.Conv1d) else n_channels)


def takes_shape(module: nn.Module | None, shape: Shape, dtype: torch.dtype | None = None) -> bool:
    """Tell whether the first convolution or linear layer accepts an input of this shape, of the weights' dtype if
    none is given."""
    first = first_layer(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear))
    return first is not None and _takes(module, first, shape, dtype)


def _takes(
    module: nn.Module | None, first: nn.Module, shape: Shape, dtype: torch.dtype | None = None
) -> bool:
    """Tell whether a layer accepts what an input of this shape becomes."""
    if module is None:
        return False
    names = {id(layer): name for name, layer in module.named_modules()}
    given = torch.empty(shape, dtype=dtype or _dtype(module), device="meta")
    return gets_through(module, (given,), names[id(first)])


def _dtype(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def first_layer(
    module: nn.Module | None, kinds: tuple[type[nn.Module], ...] = (nn.Conv2d, nn.Conv3d, nn.Linear)
) -> Any:
    """Return the first registered layer of these kinds, if it fixes the number of input channels or features."""
    layers = module.modules() if module is not None else ()
    first = next((layer for layer in layers if isinstance(layer, kinds)), None)
    # A lazy layer takes any number.
    return None if isinstance(first, LazyModuleMixin) else first


def _natural_size(family: str, transforms: Any | None, module: nn.Module | None) -> tuple[int, int]:
    if family == "optical_flow":
        return _FLOW_SIZE
    resizer: Any = getattr(module, "transform", None)
    if family == "detection" and resizer is not None:
        width, height = resizer.fixed_size or (resizer.min_size[-1],) * 2
        return height, width
    stated = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None)
    if stated := stated_size((module,)) or stated:  # a model of torchvision may be built for another size
        return stated[0], stated[-1]
    return (family == "custom" and configured_size(module)) or _DEFAULT_SIZE.get(family, (224, 224))
