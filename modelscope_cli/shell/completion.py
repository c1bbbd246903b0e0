"""Shell completion of models and layers. Imports nothing heavy."""

import glob
from collections.abc import Iterable

import typer

from modelscope_cli.models.names import model_names, timm_names

LAYER_WORDS = ("conv", "linear", "norm", "relu", "pool", "type:")


def name(incomplete: str) -> list[str]:
    names = [f"timm:{name}" for name in timm_names()] if incomplete.startswith("timm:") else model_names()
    return _beginning(incomplete, names)


def name_or_file(incomplete: str) -> list[str]:
    """Complete the name of a model; if none fits, leave files to the shell."""
    names = name(incomplete)
    return [*names, *sorted(glob.glob(f"{glob.escape(incomplete)}*"))] if names and incomplete else names


def layers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a layer pattern: kinds of layers, and layer names of a model with a cached summary."""
    from modelscope_cli.models.names import kept_layers

    # After an option that still lacks its value, Click has not assigned any arguments yet.
    named = (ctx.params.get("model"), ctx.params.get("first"), *ctx.args)
    model = str(next(filter(None, named), ""))
    return _beginning(incomplete, dict.fromkeys((*LAYER_WORDS, *kept_layers(model))))


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
