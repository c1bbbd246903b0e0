"""The inputs of models of transformers that take an image and text: noise, and texts to compare."""

import inspect
from collections.abc import Sequence

from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.grammar import ShapeSpec
from modelscope_cli.inputs.model_config import configured_shape, transformers_config

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
