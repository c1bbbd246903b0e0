"""The help of a command. `--help` takes a line per panel of shared options, `--help-all` lists them all.

Not drawn by Rich: a page without boxes is half as long, and does not wait for the import of Rich.
"""

import re
import shlex
from collections.abc import Iterable, Iterator

from modelscope_cli.shell.overview import HELP_ALL, bold, entry, filled, width
from modelscope_cli.shell.parameters import Parameter, parameters_of

_EXAMPLES = 3  # on a short page
_SENTENCE = re.compile(r"(?<=[.?!])(?<!et al\.)\s+")
_FOLDED = ("Model", "Input", "Output")  # shared panels; each is a topic of `modelscope help`
_LINES = 60  # at 80 columns; a page with fewer lines is not shortened


def command_page(path: str, doc: str, *, is_whole: bool) -> str:
    """Return the help of a command; a short one is never abridged."""
    whole = "\n".join(page(path, doc, is_whole=True))
    return whole if is_whole or whole.count("\n") < _LINES else "\n".join(page(path, doc, is_whole=False))


def page(path: str, doc: str, *, is_whole: bool) -> Iterator[str]:
    """Yield the lines of a command's help; unless it is whole, the first sentence of each text.

    Args:
        path: such as `modelscope stats`.
        doc: the docstring of the command, with its examples.
    """
    command = path.rsplit(maxsplit=1)[-1]
    every = parameters_of(command).values()
    yield f"{bold('Usage:')} {usage(path)}"
    yield ""
    yield from _about(doc, is_whole)
    yield from _section("Arguments", (one for one in every if one.is_argument), is_whole)
    folded: dict[str, list[str]] = {}
    inside: dict[str, list[Parameter]] = {}
    for one in every:
        if not is_whole and one.panel in _FOLDED:
            folded.setdefault(one.panel, []).append(one.spellings[0].partition("/")[0])
        elif not one.is_argument:
            inside.setdefault(one.panel, []).append(one)
    for panel, options in inside.items():
        yield from _section(panel, options, is_whole)
    if folded:
        yield ""
        yield bold("Shared options")
        for panel, names in folded.items():
            yield from filled(", ".join(names), f"  {panel:<8}", " " * 10)
    if not is_whole:
        yield ""
        yield f"Details, and the shared options: {path} {HELP_ALL}"


def page_of_panel(command: str, panel: str) -> Iterator[str]:
    inside = [one for one in parameters_of(command).values() if one.panel == panel]
    yield from _section(f"{panel} options", inside)


def usage(path: str) -> str:
    """Return the usage line: `modelscope stats [MODEL] [IMAGE]... [OPTIONS]`."""
    command = path.rsplit(maxsplit=1)[-1]
    arguments = [_usage_of(one) for one in parameters_of(command).values() if one.is_argument]
    # Arguments after the script of `watch` belong to the script.
    pieces = ["[OPTIONS]", *arguments] if command == "watch" else [*arguments, "[OPTIONS]"]
    return " ".join([path, *pieces])


def _usage_of(argument: Parameter) -> str:
    metavar = argument.example if argument.is_required else f"[{argument.example}]"
    return f"{metavar}..." if argument.is_repeatable else metavar


def _about(doc: str, is_whole: bool) -> Iterator[str]:
    """Yield the docstring: paragraphs wrapped, examples ready to be pasted."""
    about, _, examples = doc.partition("Examples:")
    paragraphs = [text for text in map(str.strip, about.split("\n\n")) if text]
    for paragraph in paragraphs if is_whole else paragraphs[:1]:
        yield from filled(paragraph)
        yield ""
    commands = [text for text in map(str.strip, examples.split("\n\n")) if text]
    if commands:
        yield bold("Examples")
    for command in commands if is_whole else commands[:_EXAMPLES]:
        line, margin = "", "  "
        for word in _words(command):
            if line and len(margin) + len(line) + len(word) + 3 > width():
                yield f"{margin}{line} \\"
                line, margin = word, "    "
            else:
                line = f"{line} {word}".strip()
        yield f"{margin}{line}"


def _words(command: str) -> list[str]:
    """Split a command line at spaces outside quotes."""
    lexer = shlex.shlex(command, posix=False, punctuation_chars="")
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(lexer)


def _section(title: str, options: Iterable[Parameter], is_whole: bool = True) -> Iterator[str]:
    """Yield a heading and its options, each with its first sentence or its whole text."""
    for place, one in enumerate(options):
        if not place:
            yield ""
            yield bold(title)
        facts = list(facts_of(one, is_whole))
        text = one.help if is_whole else _SENTENCE.split(one.help)[0]
        yield from entry(label(one), f"{text} [{'; '.join(facts)}]" if facts else text)


def facts_of(one: Parameter, is_whole: bool = True) -> Iterator[str]:
    """Yield the default of an option and the constraints on its value."""
    if one.shown_default:
        yield f"default: {one.shown_default}"
    if not is_whole:
        return
    if one.info.min is not None and one.info.max is not None and one.info.max <= 10_000:
        yield f"{one.info.min:g} to {one.info.max:g}"
    elif one.info.min is not None:
        yield f"at least {one.info.min:g}"
    if one.is_required and one.is_argument:
        yield "required"


def label(one: Parameter) -> str:
    """Return `-l, --layer PATTERN`; for a flag the names alone, for an argument the metavar."""
    if one.is_argument:
        return one.example
    return f"{', '.join(names_of(one))} {one.value}".rstrip()


def names_of(one: Parameter) -> list[str]:
    """Return the spellings of an option, the short one first."""
    return [name for spelling in one.spellings[::-1] for name in spelling.split("/")]
