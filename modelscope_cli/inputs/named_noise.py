"""The inputs of models of transformers that take more than an image: noise, and texts to compare."""

import inspect
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.inputs.grammar import ShapeSpec
from modelscope_cli.inputs.model_config import configured_shape, transformers_config

IMAGES = "pixel_values"
_TEXT_LENGTH, _DECODER_LENGTH = 16, 4
_SIDE, _PATCHES = 224, 16  # of an image whose size is not configured, in pixels and in patches
_FRAMES = 4  # of a clip whose length is not configured


def natural_named(module: nn.Module | None, batch: int) -> dict[str, Any] | None:
    """Return the inputs by name of a model for text and images; None for others.

    They are a `ShapeSpec` each. Among the integers of the text are as many image tokens as the model uses for an
    image.
    """
    parameters = signature_of(module)
    if module is None or parameters is None:
        return None
    config, text = transformers_config(module), parameters.get("input_ids")
    if config is None or IMAGES not in parameters:
        return None
    decoded = ShapeSpec((batch, _DECODER_LENGTH), "int64")
    has_decoder = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters
    images = _images(config, parameters, configured_shape(module), batch)
    if text is None:
        return {**images, "decoder_input_ids": decoded} if has_decoder else None
    is_optional = text.default is not text.empty and next(iter(parameters)) != "input_ids"
    if is_optional and not hasattr(config, "text_config"):
        return None
    row: tuple[int, ...] = ()
    if (token := getattr(config, "image_token_id", None)) is not None:
        row = (token,) * _count_tokens(module, _images(config, parameters, configured_shape(module), 1))
    most = getattr(getattr(config, "text_config", config), "max_position_embeddings", None) or _TEXT_LENGTH
    length = len(row) + max(min(_TEXT_LENGTH, most - len(row)), 1)
    named: dict[str, Any] = {"input_ids": ShapeSpec((batch, length), "int64", row), **images}
    if "mm_token_type_ids" in parameters:
        kinds = (1,) * len(row) + (0,) * (length - len(row))
        named["mm_token_type_ids"] = ShapeSpec((batch, length), "int64", kinds)
    return named | ({"decoder_input_ids": decoded} if has_decoder else {})


def takes_patches(module: nn.Module | None) -> bool:
    """Tell whether a model takes patches of images, cut by a processor of its own, as Qwen2-VL and SigLIP 2 do."""
    return bool((signature_of(module) or {}).keys() & {"image_grid_thw", "spatial_shapes"})


def image_argument(named: Mapping[str, ShapeSpec]) -> str | None:
    """Return the name of the input that image files can fill; None without one."""
    first = next(iter(named))
    is_image = len(named[first].shape) == 4 and named[first].shape[1] == 3
    return IMAGES if IMAGES in named else first if is_image else None


def texts_of(module: nn.Module, texts: Sequence[str], name: str, n_images: int) -> dict[str, Tensor] | None:
    """Return texts as a dual encoder such as CLIP or a detector such as OWL-ViT takes them; None for other models.

    Args:
        name: of the model; `open_clip:NAME` has a tokenizer of its own.
        n_images: a detector is given all texts again with each image.
    """
    if is_open_clip(module):
        return {"text": _tokens_of_open_clip(module, texts, name)}
    config = transformers_config(module)
    if config is None or not (
        is_finder(module) or (hasattr(module, "get_text_features") and takes_texts(module))
    ):
        return None
    import transformers

    where, given = config.name_or_path, {"local_files_only": True, "trust_remote_code": False}
    try:
        if is_finder(module):
            processor = transformers.AutoProcessor.from_pretrained(where, **given)
            words = processor(text=[list(texts)] * n_images, return_tensors="pt")
        else:
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, **given)
            padding = "max_length" if config.model_type.startswith("siglip") else True
            most = config.text_config.max_position_embeddings
            words = tokenizer(
                list(texts), padding=padding, truncation=True, max_length=most, return_tensors="pt"
            )
    except Exception as error:  # no such file, or one from which no tokenizer can be made
        reason = " ".join(str(error).split()).partition(". ")[0][:200] or type(error).__name__
        message = f"the texts cannot be read by the tokenizer of '{where}': {reason}"
        raise CannotRunError(message, "leave out --labels") from error
    return {name: value for name, value in words.items() if name in (signature_of(module) or ())}


def is_finder(module: nn.Module) -> bool:
    """Tell whether a model of transformers finds what texts describe in images, such as OWL-ViT.

    Grounding DINO scores the tokens of all texts in one, and not texts.
    """
    kind = type(module).__name__
    return takes_texts(module) and "ObjectDetection" in kind and not kind.startswith("GroundingDino")


def takes_texts(module: nn.Module) -> bool:
    """Tell whether a model of transformers takes text and images by name."""
    is_theirs = transformers_config(module) is not None
    return is_theirs and {"input_ids", IMAGES} <= (signature_of(module) or {}).keys()


def is_open_clip(module: nn.Module) -> bool:
    """Tell whether a model returns features of images and of texts to be compared, as those of open_clip."""
    return all(hasattr(module, name) for name in ("encode_image", "encode_text", "logit_scale"))


def _tokens_of_open_clip(module: Any, texts: Sequence[str], name: str) -> Tensor:
    try:
        import open_clip

        if name.startswith("open_clip:"):
            tokenizer = open_clip.get_tokenizer(name.partition(":")[2])
        else:
            tokenizer = open_clip.SimpleTokenizer(context_length=module.context_length)
        tokens: Tensor = tokenizer(list(texts))
    except Exception as error:  # the package is missing, or the files of a tokenizer
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise CannotRunError(
            f"the texts cannot be read by open_clip: {reason}", "leave out --labels"
        ) from error
    n_words = getattr(module, "vocab_size", None)
    if n_words is not None and int(tokens.max()) >= n_words:
        message = f"the model has {n_words} tokens, fewer than the tokenizer of open_clip"
        raise CannotRunError(message, "leave out --labels")
    return tokens


def signature_of(module: nn.Module | None) -> dict[str, inspect.Parameter] | None:
    """Return the parameters of the forward; None if unknown."""
    try:
        return None if module is None else dict(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # compiled or written in C
        return None


def _images(
    config: Any, parameters: Mapping[str, Any], shape: tuple[int, ...] | None, batch: int
) -> dict[str, ShapeSpec]:
    """Return the noise of images, and what describes them, by the arguments that the forward has."""
    vision: Any = getattr(config, "vision_config", config)
    channels, *sides = (3, _SIDE, _SIDE) if shape is None else shape[-3:]
    if "image_grid_thw" in parameters:  # patches of all images, one per row, as of Qwen2-VL
        channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", None) or 3
        width = channels * vision.temporal_patch_size * vision.patch_size**2
        grid = ShapeSpec((batch, 3), "int64", (1, _PATCHES, _PATCHES))
        return {IMAGES: ShapeSpec((batch * _PATCHES**2, width)), "image_grid_thw": grid}
    if "spatial_shapes" in parameters:  # patches of each image, as of SigLIP 2
        side = math.isqrt(getattr(vision, "num_patches", None) or _PATCHES**2)
        return {
            IMAGES: ShapeSpec((batch, side * side, channels * vision.patch_size**2)),
            "pixel_attention_mask": ShapeSpec((batch, side * side), "int64", (1,) * side * side),
            "spatial_shapes": ShapeSpec((batch, 2), "int64", (side, side)),
        }
    if "image_sizes" in parameters and hasattr(config, "image_grid_pinpoints"):  # an image and one tile of it
        sizes = ShapeSpec((batch, 2), "int64", tuple(sides))
        return {IMAGES: ShapeSpec((batch, 2, channels, *sides)), "image_sizes": sizes}
    if "pixel_attention_mask" in parameters:  # several images of each text, as of Idefics
        return {IMAGES: ShapeSpec((batch, 1, channels, *sides))}
    return {IMAGES: ShapeSpec((batch, channels, *sides))}


def _count_tokens(module: nn.Module, images: Mapping[str, ShapeSpec]) -> int:
    """Return how many tokens a model makes of images; 0 if it cannot be asked."""
    inner = getattr(module, "model", module)
    ask = getattr(module, "get_image_features", None) or getattr(inner, "get_image_features", None)
    if ask is None:
        return 0
    weight = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    values = {name: fill(spec, weight) for name, spec in images.items()}
    with suppress(Exception), torch.no_grad():  # of a model that wants more than these
        answer = ask(**values)
        answer = getattr(answer, "pooler_output", answer)
        return sum(tensor[..., 0].numel() for _, tensor in tensors_in({"features": answer}))
    return 0


def fill(spec: ShapeSpec, like: Tensor) -> Tensor:
    """Return a tensor of this shape: its row, or ones, in the dtype and on the device of `like`."""
    if spec.row:
        return torch.tensor(spec.row, device=like.device).expand(spec.shape)
    return torch.ones(spec.shape, dtype=like.dtype, device=like.device)
