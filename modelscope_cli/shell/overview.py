"""The overview of all commands, `modelscope --help`. Standard library only."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping

from modelscope_cli.shell.live import is_coloured

ABOUT = "See what happens inside a PyTorch vision model."
HELP, HELP_ALL = ("-h", "--help"), "--help-all"
# The module of every command, whose function has the same name, by title, with the first sentence of its help.
_TABLE = {
    "Look at a model": {
        "modelscope_cli.commands.summary": (
            "Print the layers of a model with their shapes, parameters and cost."
        ),
        "modelscope_cli.commands.stats": "Print statistics of every layer's output, over any number of images.",
        "modelscope_cli.commands.featuremaps": (
            "Save the feature maps of an image: a grid for each layer, and a contact sheet."
        ),
        "modelscope_cli.commands.predict": (
            "Print what a model predicts for images: the most likely classes of each."
        ),
        "modelscope_cli.commands.explain": (
            "Show which parts of an image are evidence for a class, and test how reliable each map is."
        ),
    },
    "Look at a training": {
        "modelscope_cli.commands.watch": (
            "Run your own training script, unchanged, and see what happens inside its models."
        ),
        "modelscope_cli.commands.grads": "Run a forward and a backward pass, and print and plot the gradients.",
        "modelscope_cli.commands.train": "Train a classifier for a few steps and show what happens inside it.",
        "modelscope_cli.commands.lrfind": (
            "Sweep the learning rate while training a copy of the model, and suggest one."
        ),
    },
    "Change a model, and measure the effect": {
        "modelscope_cli.commands.ablate": (
            "Ablate the layers of a model one by one, and measure how the prediction changes."
        ),
        "modelscope_cli.commands.prune": "Prune weights, and measure how far the predictions drift.",
    },
    "Check and compare": {
        "modelscope_cli.commands.check": (
            "Check a model or a data set against rules, and exit with 1 if one is broken."
        ),
        "modelscope_cli.commands.diff": (
            "Compare two checkpoints, two models, or one model under two settings; exit with 1 if they differ."
        ),
    },
    "Files and names": {
        "modelscope_cli.commands.report": (
            "Make one page of a model and an image, or of a saved result, to view in a browser and to share."
        ),
        "modelscope_cli.commands.weights": (
            "List the contents of a checkpoint and name its architecture, without loading it."
        ),
        "modelscope_cli.commands.demo": (
            "Put the samples into a folder: images, a tiny network with its weights, and a training script."
        ),
        "modelscope_cli.commands.help": (
            "Explain what commands have in common, a rule, or the JSON Schema of a result."
        ),
    },
}
# Names of before 0.3 for `check --list` and `help RULE`, `summary --list` and `help schema`: not in the overview.
_FORMER = {
    "modelscope_cli.commands.rules": (
        "List the rules of check, watch and train, with their thresholds and sources."
    ),
    "modelscope_cli.commands.models": (
        "List the models of torchvision, or of timm, with parameters, multiply-adds and input size."
    ),
    "modelscope_cli.commands.schema": "Print the JSON Schema of what a command prints with --json.",
}
_EVERY = [*_TABLE.values(), _FORMER]
GROUPS = {
    title: {module.rpartition(".")[2]: about for module, about in commands.items()}
    for title, commands in _TABLE.items()
}
COMMANDS = {module.rpartition(".")[2]: about for group in _EVERY for module, about in group.items()}
MODULES = {module.rpartition(".")[2]: module for group in _EVERY for module in group}
_OPTIONS = {
    "-V, --version": "Show the version.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or to change the installation.",
    "-h, --help": "Show this page.",
}


def overview() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield f"{bold('Usage:')} modelscope COMMAND [ARGUMENTS] [OPTIONS]"
    yield ""
    yield from filled(ABOUT)
    for title, commands in GROUPS.items():
        yield ""
        yield bold(title)
        for name, about in commands.items():
            yield from filled(about, f"  {name:<13}", " " * 15)
    yield ""
    yield bold("Options")
    for option, about in _OPTIONS.items():
        yield from entry(option, about)
    yield ""
    yield from filled(
        "modelscope COMMAND --help explains a command, modelscope help what all of them have in common. "
        "python -m modelscope_cli COMMAND is the same."
    )


_NARROW, _WIDE, _MARGIN = 60, 100, 26  # characters: least and largest page width; names in a list


def rows_of(title: str, about: str, rows: Mapping[str, str]) -> Iterator[str]:
    """Yield a heading, its text, and a list of terms with their meaning."""
    yield ""
    yield bold(title)
    yield from filled(about)
    for term, meaning in rows.items():
        yield from entry(term, meaning)


def entry(label: str, about: str) -> Iterator[str]:
    margin = " " * _MARGIN
    start = f"  {label}"
    if len(start) > _MARGIN - 2:
        yield start
        start = ""
    yield from filled(about.replace("  [", " ["), start.ljust(_MARGIN), margin)


def filled(text: str, first: str = "", rest: str = "", at: int | None = None) -> list[str]:
    """Wrap a paragraph between words, at the width of a page unless `at` another."""
    return textwrap.wrap(
        text,
        width() if at is None else at,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def width() -> int:
    """Return the width of a page in characters."""
    return max(_NARROW, min(_WIDE, shutil.get_terminal_size().columns))


def bold(text: str) -> str:
    """Return a heading, bold if stdout is a terminal."""
    return f"\x1b[1m{text}\x1b[0m" if is_coloured(sys.stdout) else text
