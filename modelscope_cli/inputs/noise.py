"""Draw seeded noise as input."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.errors import OUT_OF_MEMORY, CannotRunError, UsageError
from modelscope_cli.hooks.other_shapes import BEGINNINGS, first_taken, input_taken
from modelscope_cli.inputs.batch import Batch, Inputs, ModelSide, count_images, shapes_of
from modelscope_cli.inputs.grammar import ShapeSpec, by, parse_shape, parse_size
from modelscope_cli.inputs.model_config import (
    configured_shape,
    first_layer,
    natural_shapes,
    transformers_config,
)
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.records.run import Arguments, InputInfo, Shape


def make_noise(
    specs: Sequence[ShapeSpec],
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    n_codes: int,
    is_picture: bool,
) -> list[Tensor]:
    """Return one tensor per spec, the same on every device.

    Floats are standard normal (uniform in 0..1 where `is_picture`), integers uniform in 0..`n_codes` - 1.
    The global random state is not used.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = []
    for spec in specs:
        wanted = _dtype(spec) if spec.dtype else dtype
        if device.type == "meta":
            noise.append(torch.empty(spec.shape, dtype=wanted, device=device))
            continue
        try:
            if spec.is_integer:
                drawn = torch.randint(count_values(spec, n_codes), spec.shape, generator=generator)
            else:
                drawn = (torch.rand if is_picture else torch.randn)(spec.shape, generator=generator)
            noise.append(drawn.to(device, wanted))
        # Out of memory, or no such dtype on the device
        except (RuntimeError, TypeError, MemoryError) as error:
            reason = (str(error).splitlines() or [OUT_OF_MEMORY])[0]
            message = f"noise of {by(spec.shape)} ({wanted}) cannot be made on '{device}': {reason}"
            raise CannotRunError(message, "--input-shape 1,3,224,224") from error
    return noise


def count_codes(module: nn.Module | None) -> int:
    """Return the size of the smallest embedding of `module`; 2 if it has none."""
    layers = module.modules() if module is not None else ()
    return min((layer.num_embeddings for layer in layers if isinstance(layer, nn.Embedding)), default=2)


def count_values(spec: ShapeSpec, n_codes: int) -> int:
    """Return the exclusive upper bound of the noise of an integer `spec`."""
    return min(n_codes, 2 if spec.dtype == "bool" else torch.iinfo(_dtype(spec)).max + 1)


def _dtype(spec: ShapeSpec) -> torch.dtype:
    return getattr(torch, str(spec.dtype))


def open_noise(
    request: InputRequest, target: ModelSide, transforms: Any | None, module: nn.Module | None
) -> Inputs:
    """Open a batch of noise, drawn again identically in each pass."""
    tried: tuple[str, ...] = ()
    if request.shapes:
        specs = _typed_specs(request, target, transforms, module)
    else:
        shapes = natural_shapes(target.family, transforms, module, request.batch or 1)
        dtypes = getattr(module, "exported_dtypes", None) or [None] * len(shapes)
        specs = [ShapeSpec(*one) for one in zip(_resized(shapes, request.size), dtypes, strict=True)]
        taken = _by_trial(target.family, module, shapes) if request.size is None else None
        if taken is not None:
            specs, tried = [taken], (f"input: {taken}, found by trial; --input-shape sets another",)
    n_codes = count_codes(module)
    is_picture = target.family == "detection"

    def arguments(device: torch.device) -> tuple[Any, ...]:
        noise = make_noise(specs, request.seed, target.dtype, device, n_codes, is_picture)
        return target.arrange(noise)

    outline = arguments(torch.device("meta"))
    n_images = count_images(outline)

    def batches() -> Iterator[Batch]:
        yield Batch(arguments(target.device), n_images)

    is_shape_only = target.device.type == "meta"
    drawn = f"input: {describe(specs, n_codes, is_picture)} (seed {request.seed})"
    notes = tried if is_shape_only else (*tried, drawn)
    return Inputs(InputInfo("noise", shapes_of(outline)), n_images, 1, batches, notes)


def _by_trial(family: str, module: nn.Module | None, shapes: Sequence[Shape]) -> ShapeSpec | None:
    """Return what a custom model of signals, volumes, sequences or tokens takes, if it is not the natural shape."""
    begins = first_layer(module, BEGINNINGS)
    if module is None or family != "custom" or configured_shape(module) or isinstance(begins, nn.Conv2d):
        return None
    is_image = isinstance(begins, nn.Linear) and len(shapes[0]) == 4  # of patches or flattened
    taken = None if is_image else input_taken(module, shapes[0][0])
    if taken is None or (taken.shape == shapes[0] and taken.is_floating_point()):
        return None
    return ShapeSpec(tuple(taken.shape), None if taken.is_floating_point() else "int64")


def _typed_specs(
    request: InputRequest, target: ModelSide, transforms: Any | None, module: nn.Module | None
) -> list[ShapeSpec]:
    """Return the typed shapes; one without the number of images, `3,224,224` or `224,224`, is of --batch images."""
    specs = [parse_shape(text) for text in request.shapes]
    if len(specs) == 1 and target.family == "detection" and len(specs[0].shape) == 3:
        return specs * (request.batch or 1)
    specs = with_batch(specs, request.batch, target, module, transforms, target.arrange)
    first, batch = specs[0], request.batch
    if batch not in (None, first.shape[0]):
        message = f"'--batch {batch}' and '--input-shape {request.shapes[0]}' set different batch sizes"
        raise UsageError(message, f"--input-shape {replace(first, shape=(batch, *first.shape[1:]))}")
    return specs


def with_batch(
    specs: Sequence[ShapeSpec],
    batch: int | None,
    target: ModelSide,
    module: nn.Module | None,
    transforms: Any | None,
    arrange: Callable[[Sequence[Tensor]], Arguments],
) -> list[ShapeSpec]:
    """Return the shapes with the number of images where it is missing, and `--batch` images in place of one.

    Of several readings it is the one that the model takes on the meta device; `arrange` makes its arguments.
    """
    natural = natural_shapes(target.family, transforms, module, 1)[0]
    rank, n_channels = len(natural), natural[-3] if len(natural) == 4 else 0
    n = next((spec.shape[0] for spec in specs if len(spec.shape) == rank and spec.shape[0] > 1), batch or 1)
    choices: list[tuple[ShapeSpec, ...]] = []
    for spec in specs:
        given = replace(spec, shape=(batch, *spec.shape[1:])) if batch and spec.shape[0] == 1 else spec
        whole = replace(spec, shape=(n, *spec.shape))
        is_one = len(spec.shape) == rank - 1 and not spec.is_integer
        is_size = len(specs) == 1 and len(spec.shape) == 2 and not spec.is_integer
        if len(spec.shape) == rank or target.family == "detection":
            choices.append((given,))
        elif is_size and n_channels and n_channels not in spec.shape:
            sized = replace(spec, shape=(n, n_channels, *spec.shape))  # height and width
            choices.append((sized, given, whole))
        else:
            choices.append((whole, given) if is_one else (given, whole))

    def outline(chosen: Sequence[ShapeSpec]) -> Arguments:
        return arrange(make_noise(chosen, 0, target.dtype, torch.device("meta"), 2, is_picture=False))

    is_open = max(map(len, choices)) > 1
    found = first_taken(module, product(*choices), outline) if module is not None and is_open else None
    return [*(found or next(product(*choices)))]


def _resized(shapes: Sequence[Shape], text: str | None) -> Sequence[Shape]:
    if text is None:
        return shapes
    size = parse_size(text)
    if len(shapes[0]) < 3:
        message = f"'--size {text}' does not fit an input of {by(shapes[0])}, which is not an image"
        raise UsageError(message, f"leave out --size {text}")
    return [(*shape[:-2], size[0], size[-1]) for shape in shapes]


def describe(specs: Sequence[ShapeSpec], n_codes: int, is_picture: bool) -> str:
    floats = "uniform noise in 0..1" if is_picture else "normal noise"
    return "; ".join(
        f"integers in 0..{count_values(spec, n_codes) - 1}, {by(spec.shape)} ({spec.dtype})"
        if spec.is_integer
        else f"{floats}, {by(spec.shape)}"
        for spec in specs
    )


IMAGES = "pixel_values"
_TEXT_LENGTH, _DECODER_LENGTH = 16, 4
_SIDE = 224  # of an image whose size is not configured


def natural_named(module: nn.Module | None, batch: int) -> dict[str, ShapeSpec] | None:
    """Return the inputs by name of a model for text and images, or for images and a decoder; None for others."""
    parameters, config = signature_of(module), transformers_config(module)
    if config is None or parameters is None or IMAGES not in parameters:
        return None
    text, named = parameters.get("input_ids"), {}
    if text is not None:
        is_optional = text.default is not text.empty and next(iter(parameters)) != "input_ids"
        if is_optional and not hasattr(config, "text_config"):
            return None
        most = getattr(getattr(config, "text_config", config), "max_position_embeddings", None)
        named["input_ids"] = ShapeSpec((batch, min(_TEXT_LENGTH, most or _TEXT_LENGTH)), "int64")
    has_decoder = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters
    if not named and not has_decoder:
        return None
    named[IMAGES] = ShapeSpec((batch, *(configured_shape(module) or (3, _SIDE, _SIDE))[-3:]))
    if has_decoder:
        named["decoder_input_ids"] = ShapeSpec((batch, _DECODER_LENGTH), "int64")
    return named


def texts_of(module: nn.Module, texts: Sequence[str]) -> dict[str, Tensor] | None:
    """Return texts as a dual encoder of transformers such as CLIP takes them; None for other models."""
    config, parameters = transformers_config(module), signature_of(module) or {}
    if config is None or not (
        {"input_ids", IMAGES} <= parameters.keys() and hasattr(module, "get_text_features")
    ):
        return None
    import transformers

    where = config.name_or_path
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            where, local_files_only=True, trust_remote_code=False
        )
        padding = "max_length" if config.model_type.startswith("siglip") else True
        most = config.text_config.max_position_embeddings
        words = tokenizer(list(texts), padding=padding, truncation=True, max_length=most, return_tensors="pt")
    except Exception as error:  # no such file, or one from which no tokenizer can be made
        reason = " ".join(str(error).split()).partition(". ")[0][:200] or type(error).__name__
        message = f"the texts cannot be read by the tokenizer of '{where}': {reason}"
        raise CannotRunError(message, "leave out --labels") from error
    return {name: value for name, value in words.items() if name in parameters}


def signature_of(module: nn.Module | None) -> dict[str, inspect.Parameter] | None:
    """Return the parameters of the forward; None if unknown."""
    try:
        return None if module is None else dict(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # compiled or written in C
        return None
