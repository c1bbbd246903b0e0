"""The inputs of models of transformers and diffusers that take more than an image: noise, and texts to compare."""

import inspect
import math
import sys
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
    """Return the inputs by name of a model for text and images, or of diffusers; None for others.

    They are a `ShapeSpec` each. Among the integers of the text are as many image tokens as the model uses for an
    image.
    """
    parameters = signature_of(module)
    if module is None or parameters is None:
        return None
    if type(module).__module__.startswith("diffusers."):
        return _of_diffusers(module, parameters, batch)
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
    """Tell whether a model of transformers finds what texts describe in images, such as OWL-ViT."""
    return takes_texts(module) and "ObjectDetection" in type(module).__name__


def takes_texts(module: nn.Module) -> bool:
    """Tell whether a model of transformers takes text and images by name."""
    is_theirs = transformers_config(module) is not None
    return is_theirs and {"input_ids", IMAGES} <= (signature_of(module) or {}).keys()


def texts_of_tokens(module: nn.Module, logits: Tensor, args: Any) -> Tensor:
    """Return the number of the likeliest text of each query, `(N, queries)`.

    Args:
        logits: `(N, queries, texts)`; of Grounding DINO `(N, queries, tokens)`, where a token such as a full stop
            ends each text.
    """
    ends = getattr(sys.modules[type(module).__module__], "SPECIAL_TOKENS", None)
    if ends is None or not isinstance(args, dict):
        return logits.argmax(2)
    ids = args["input_ids"]
    is_end = torch.isin(ids, torch.tensor(ends, device=ids.device))
    of_words = logits[..., : ids.shape[1]].masked_fill(is_end[:, None], -torch.inf)
    return (is_end.cumsum(1) - 1).gather(1, of_words.argmax(2))


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


# Settings with the width of the text that a denoiser takes, that before a projection first.
_TEXT_WIDTHS = (
    *("encoder_hid_dim", "caption_channels", "joint_attention_dim", "text_embed_dim", "text_dim"),
    "cross_attention_dim",
)


def _of_diffusers(
    module: nn.Module, parameters: Mapping[str, Any], batch: int
) -> dict[str, ShapeSpec] | None:
    """Return the inputs of a denoiser of diffusers; None for its other models."""
    config: dict[str, Any] = dict(getattr(module, "config", {}))
    image = next((name for name in ("sample", "hidden_states") if name in parameters), None)
    if image is None or "timestep" not in parameters:
        return None
    size = config.get("sample_size") or 32
    size = 64 if isinstance(size, int) and size > 4096 else size  # samples of a sound
    sides = (size, size) if isinstance(size, int) else tuple(size)
    channels, kind = config.get("in_channels") or 3, type(module).__name__
    sides = sides[:1] if "1D" in kind else (_FRAMES, *sides) if "3D" in kind else sides
    named = {image: ShapeSpec((batch, channels, *sides))}
    if "img_ids" in parameters:  # patches in a row and their places, as of Flux
        named = {image: ShapeSpec((batch, _PATCHES, channels)), "img_ids": ShapeSpec((_PATCHES, 3))}
        named["txt_ids"] = ShapeSpec((_TEXT_LENGTH, 3))
    named["timestep"] = ShapeSpec((batch,), "int64")
    width = next((config[key] for key in _TEXT_WIDTHS if config.get(key)), None)
    if "encoder_hidden_states" in parameters and width:
        width = width if isinstance(width, int) else width[0]
        named["encoder_hidden_states"] = ShapeSpec((batch, _TEXT_LENGTH, width))
    if "pooled_projections" in parameters and config.get("pooled_projection_dim"):
        named["pooled_projections"] = ShapeSpec((batch, config["pooled_projection_dim"]))
    if "controlnet_cond" in parameters:
        larger = 2 ** (len(config.get("conditioning_embedding_out_channels") or (0,)) - 1)
        shape = (batch, config.get("conditioning_channels") or 3, *(side * larger for side in sides))
        named["controlnet_cond"] = ShapeSpec(shape)
    if "guidance" in parameters and config.get("guidance_embeds"):
        named["guidance"] = ShapeSpec((batch,))
    if "class_labels" in parameters and (config.get("num_embeds_ada_norm") or config.get("num_class_embeds")):
        named["class_labels"] = ShapeSpec((batch,), "int64")
    return named
