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
        "modelscope_cli.commands.summary": "Print the layers of a model, their shapes, parameters and cost.",
        "modelscope_cli.commands.stats": "Print statistics of every layer's output, over many images.",
        "modelscope_cli.commands.featuremaps": "Save the feature maps of an image as one grid per layer.",
        "modelscope_cli.commands.predict": "Print what a model predicts for images, and its accuracy.",
        "modelscope_cli.commands.explain": "Show the evidence for a class in an image, and test each map.",
        "modelscope_cli.commands.ablate": "Ablate layers one by one and measure how the predictions change.",
    },
    "Look at training": {
        "modelscope_cli.commands.watch": "Run your training script, unchanged, and see inside its models.",
        "modelscope_cli.commands.grads": "Run a forward and a backward pass and print the gradients.",
        "modelscope_cli.commands.train": "Train a classifier for a few steps and show what happens inside.",
        "modelscope_cli.commands.lrfind": "Sweep the learning rate in a short training run and suggest one.",
    },
    "Check and compare": {
        "modelscope_cli.commands.check": "Check a model or a data set; exit with 1 if a rule is broken.",
        "modelscope_cli.commands.diff": "Compare two models or checkpoints; exit with 1 if they differ.",
    },
    "Files and names": {
        "modelscope_cli.commands.report": "Make one page about a model and an image, or from a saved result.",
        "modelscope_cli.commands.weights": "List a checkpoint and name its architecture, without loading it.",
        "modelscope_cli.commands.demo": "Copy the samples: images, a tiny network and a training script.",
        "modelscope_cli.commands.help": "Explain a topic, a command, a rule, or the schema of a result.",
    },
}
# What commands of before 0.3 are now.
FORMER = {"rules": ("check", "--list"), "models": ("summary", "--list"), "schema": ("help", "schema")}
GROUPS = {
    title: {module.rpartition(".")[2]: about for module, about in commands.items()}
    for title, commands in _TABLE.items()
}
COMMANDS = {module.rpartition(".")[2]: about for group in _TABLE.values() for module, about in group.items()}
MODULES = {module.rpartition(".")[2]: module for group in _TABLE.values() for module in group}


def overview() -> str:
    lines = [f"{bold('Usage:')} modelscope COMMAND [ARGUMENTS] [OPTIONS]", *filled(ABOUT)]
    for title, commands in GROUPS.items():
        lines += ["", bold(title)]
        for name, about in commands.items():
            lines += filled(about, f"  {name:<13}", " " * 15)
    lines += ["", *filled("modelscope COMMAND --help explains a command, modelscope help TOPIC a topic.")]
    lines += filled("Options: -V, --version, --install-completion, --show-completion, -h, --help")
    return "\n".join(lines)


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
