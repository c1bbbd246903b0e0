"""The overview of all commands, `modelscope --help`. Standard library only."""

import re
from collections.abc import Iterator
from pathlib import Path

from modelscope_cli.shell.pages import bold, entry, filled

ABOUT = "See what happens inside a PyTorch vision model."
HELP, HELP_ALL = ("-h", "--help"), "--help-all"
TITLES = (
    "Look at a model",
    "Look at a training",
    "Change a model, and measure the effect",
    "Check and compare",
    "Files and names",
)
_COMMAND = re.compile(
    r'^PLACE = (\d)(\d).*^@command\ndef (\w+)\(.+?"""(.+?)(?:\n\n|""")', re.MULTILINE | re.DOTALL
)


def _read_commands() -> dict[str, dict[str, str]]:
    """Return the commands by title, with the first sentence of their help, from the sources of all `command.py`.

    The digits of a command's `PLACE` are the numbers of its title and of its line below it.
    """
    sources = (Path(__file__).parents[1] / "commands").glob("*/command.py")
    found = sorted(_COMMAND.findall(source.read_text("utf-8"))[0] for source in sources)
    groups: dict[str, dict[str, str]] = {title: {} for title in TITLES}
    for title, _, name, about in found:
        groups[TITLES[int(title) - 1]][name] = " ".join(about.split())
    return groups


GROUPS = _read_commands()
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}
_OPTIONS = {
    "-V, --version": "Show the version.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or to change the installation.",
    "-h, --help": "Show this page.",
}


def overview() -> str:
    """Return the page of all commands."""
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
