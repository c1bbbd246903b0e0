"""What the shell completes: words that an option takes. Nothing heavy is imported."""

import glob
from collections.abc import Callable, Iterable

import typer

from modelscope_cli.models.names import model_names, timm_names

LAYER_WORDS = ("conv", "linear", "norm", "relu", "pool", "type:")

Complete = Callable[[str], list[str]]
# Of matplotlib's colour maps those that are used for one quantity, and two that have a middle.
COLOUR_MAPS = ("viridis", "magma", "inferno", "plasma", "cividis", "gray", "turbo", "coolwarm", "RdBu_r")


def one_of(*words: str) -> Complete:
    """Return what completes one of these words."""
    return lambda incomplete: _beginning(incomplete, words)


def columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of several columns of a command."""
    from modelscope_cli.report.views import column_keys

    return _last_of(incomplete, column_keys(str(ctx.info_name)))


def rules(incomplete: str) -> list[str]:
    """Complete the last of several codes or names of rules."""
    from modelscope_cli.rules.registry import EVERY

    return _last_of(incomplete, [word for rule in EVERY for word in (rule.code, rule.name)])


def losses(incomplete: str) -> list[str]:
    """Complete the name of a loss."""
    from modelscope_cli.analysis.gradients.request import LOSSES

    return _beginning(incomplete, ("auto", *LOSSES))


def name(incomplete: str) -> list[str]:
    """Complete the name of a model."""
    names = [f"timm:{name}" for name in timm_names()] if incomplete.startswith("timm:") else model_names()
    return _beginning(incomplete, names)


def name_or_file(incomplete: str) -> list[str]:
    """Complete the name of a model or of a file; where no name fits, the shell completes files, and better."""
    names = name(incomplete)
    return [*names, *sorted(glob.glob(f"{glob.escape(incomplete)}*"))] if names and incomplete else names


def documents(incomplete: str) -> list[str]:
    """Complete the name of a document that has a schema."""
    from modelscope_cli.records.documents import DOCUMENTS

    return _beginning(incomplete, DOCUMENTS)


def topics(incomplete: str) -> list[str]:
    """Complete a topic of the help, or a command."""
    from modelscope_cli.shell.overview import COMMANDS

    return _beginning(incomplete, ("model", "input", "output", "layers", "hooks", *COMMANDS))


def colour_maps(incomplete: str) -> list[str]:
    """Complete the name of a colour map."""
    return _beginning(incomplete, COLOUR_MAPS)


def hooks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the kind and the action of a hook, and the layer behind its @."""
    from modelscope_cli.hooks.spec import ACTIONS, KINDS

    if "@" in incomplete:
        action, at, pattern = incomplete.partition("@")
        return [f"{action}{at}{layer}" for layer in layers(ctx, pattern)]
    kind, colon, action = incomplete.rpartition(":")
    kinds = [] if colon else [f"{kind}:" for kind in KINDS if kind != "forward"]
    return [f"{kind}{colon}{word}" for word in (*kinds, *ACTIONS) if word.startswith(action)]


def layers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a layer pattern: kinds of layers, and the names of a model whose summary was kept."""
    from modelscope_cli.models.names import kept_layers

    # Behind an option that still lacks its value, no word is counted among the arguments yet.
    named = (ctx.params.get("model"), ctx.params.get("first"), *ctx.args)
    model = str(next(filter(None, named), ""))
    return _beginning(incomplete, dict.fromkeys((*LAYER_WORDS, *kept_layers(model))))


def _last_of(incomplete: str, words: Iterable[str]) -> list[str]:
    """Complete what follows the last comma."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.lower().startswith(last.lower())]


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
