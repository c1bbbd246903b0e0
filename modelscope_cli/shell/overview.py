"""The overview of all commands, `modelscope --help`. Standard library only."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from modelscope_cli.shell.live import is_coloured

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
    names = sorted(_COMMAND.findall(source.read_text("utf-8"))[0] for source in sources)
    groups: dict[str, dict[str, str]] = {title: {} for title in TITLES}
    for title, _, name, about in names:
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
