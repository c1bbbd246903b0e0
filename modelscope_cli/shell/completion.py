"""Shell completion of option values. Imports nothing heavy."""

import glob
from collections.abc import Callable, Iterable

import typer

from modelscope_cli.models.names import model_names, timm_names

LAYER_WORDS = ("conv", "linear", "norm", "relu", "pool", "type:")

Complete = Callable[[str], list[str]]


def one_of(*words: str) -> Complete:
    return lambda incomplete: _beginning(incomplete, words)


def columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of a command's comma-separated columns."""
    from modelscope_cli.report.registry import view_for

    return _last_of(incomplete, dict.fromkeys(column.key for column in view_for(str(ctx.info_name)).columns))


def rules(incomplete: str) -> list[str]:
    """Complete the last of several rule codes or names."""
    from modelscope_cli.rules.registry import EVERY

    return _last_of(incomplete, [word for rule in EVERY for word in (rule.code, rule.name)])


def losses(incomplete: str) -> list[str]:
    """Complete the name of a loss."""
    from modelscope_cli.analysis.gradients.request import LOSSES

    return _beginning(incomplete, ("auto", *LOSSES))


def name(incomplete: str) -> list[str]:
    names = [f"timm:{name}" for name in timm_names()] if incomplete.startswith("timm:") else model_names()
    return _beginning(incomplete, names)


def name_or_file(incomplete: str) -> list[str]:
    """Complete the name of a model; if none fits, leave files to the shell."""
    names = name(incomplete)
    return [*names, *sorted(glob.glob(f"{glob.escape(incomplete)}*"))] if names and incomplete else names


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a help topic or a command; after `schema` the name of a document."""
    from modelscope_cli.records.documents import DOCUMENTS
    from modelscope_cli.shell.overview import COMMANDS

    if "schema" in (ctx.params.get("words") or ctx.args):
        return _beginning(incomplete, DOCUMENTS)
    return _beginning(incomplete, ("model", "input", "output", "layers", "hooks", "agents", *COMMANDS))


def hooks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the kind and the action of a hook, and the layer after its @."""
    from modelscope_cli.hooks.spec import ACTIONS, KINDS

    if "@" in incomplete:
        action, at, pattern = incomplete.partition("@")
        return [f"{action}{at}{layer}" for layer in layers(ctx, pattern)]
    kind, colon, action = incomplete.rpartition(":")
    kinds = [] if colon else [f"{kind}:" for kind in KINDS if kind != "forward"]
    return [f"{kind}{colon}{word}" for word in (*kinds, *ACTIONS) if word.startswith(action)]


def layers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a layer pattern: kinds of layers, and layer names of a model with a cached summary."""
    from modelscope_cli.models.names import kept_layers

    # After an option that still lacks its value, Click has not assigned any arguments yet.
    named = (ctx.params.get("model"), ctx.params.get("first"), *ctx.args)
    model = str(next(filter(None, named), ""))
    return _beginning(incomplete, dict.fromkeys((*LAYER_WORDS, *kept_layers(model))))


def _last_of(incomplete: str, words: Iterable[str]) -> list[str]:
    """Complete the part after the last comma."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.lower().startswith(last.lower())]


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
