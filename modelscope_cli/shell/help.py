"""The help of a command. `--help` takes a line per panel of shared options, `--help-all` lists them all.

Not drawn by Rich: a page without boxes is half as long, and does not wait for the import of Rich.
"""

import re
import shlex
from collections.abc import Iterable, Iterator

from modelscope_cli.records.options import ARGUMENTS, OPTIONS, SHARED
from modelscope_cli.shell.declared import Declared, declared, help_of
from modelscope_cli.shell.overview import HELP_ALL, bold, entry, filled, width

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
    every = declared(command).values()
    yield f"{bold('Usage:')} {usage(path)}"
    yield ""
    yield from _about(doc, is_whole)
    yield from _section("Arguments", (one for one in every if one.is_argument), command, is_whole)
    folded: dict[str, list[str]] = {}
    inside: dict[str, list[Declared]] = {}
    for one in every:
        is_folding = not is_whole and one.panel in _FOLDED
        if is_folding and one.name in SHARED[one.panel]:
            folded.setdefault(one.panel, []).append(one.spellings[0].partition("/")[0])
        elif not one.is_argument:
            inside.setdefault(OPTIONS if is_folding else one.panel, []).append(one)
    for panel, options in inside.items():
        yield from _section(panel, options, command, is_whole)
    if folded:
        yield ""
        yield bold("Shared options")
        for panel, names in folded.items():
            yield from filled(", ".join(names), f"  {panel:<8}", " " * 10)
    if not is_whole:
        yield ""
        yield f"More of each, and of the shared options: {path} {HELP_ALL}"


def page_of_panel(command: str, panel: str) -> Iterator[str]:
    inside = [one for one in declared(command).values() if one.panel == panel and one.name in SHARED[panel]]
    yield from _section(f"{panel} options", inside, command)


def usage(path: str) -> str:
    """Return the usage line: `modelscope stats [MODEL] [IMAGE]... [OPTIONS]`."""
    command = path.rsplit(maxsplit=1)[-1]
    arguments = [_usage_of(one) for one in declared(command).values() if one.is_argument]
    # Arguments after the script of `watch` belong to the script.
    pieces = ["[OPTIONS]", *arguments] if command == "watch" else [*arguments, "[OPTIONS]"]
    return " ".join([path, *pieces])


def _usage_of(argument: Declared) -> str:
    name = argument.option.metavar
    metavar = name if argument.parameter.is_required else f"[{name}]"
    return f"{metavar}..." if argument.parameter.kind == "texts" else metavar


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


def _section(title: str, options: Iterable[Declared], command: str, is_whole: bool = True) -> Iterator[str]:
    """Yield a heading and its options, each with its first sentence or its whole text."""
    for place, one in enumerate(options):
        if not place:
            yield ""
            yield bold(title)
        about = help_of(one, command)
        facts = list(facts_of(one, is_whole))
        text = about if is_whole else _SENTENCE.split(about)[0]
        yield from entry(label(one), f"{text} [{'; '.join(facts)}]" if facts else text)


def facts_of(one: Declared, is_whole: bool = True) -> Iterator[str]:
    """Yield the default of an option and the constraints on its value."""
    if is_whole and one.option.variable:
        yield f"env var: {one.option.variable}"
    if one.shown_default:
        yield f"default: {one.shown_default}"
    if not is_whole:
        return
    least, most = one.option.least, one.option.most
    if one.option.above is not None:
        yield f"above {one.option.above:g}"
    elif least is not None and most is not None and most <= 10_000:
        yield f"{least:g} to {most:g}"
    elif least is not None and one.option.below is not None:
        yield f"{least:g} to below {one.option.below:g}"
    elif least is not None:
        yield f"at least {least:g}"
    if one.parameter.is_required and one.panel == ARGUMENTS:
        yield "required"


def label(one: Declared) -> str:
    """Return `-l, --layer PATTERN`; for a flag the names alone, for an argument the metavar."""
    if one.is_argument:
        return one.option.metavar
    names = ", ".join(name for spelling in one.spellings[::-1] for name in spelling.split("/"))
    return f"{names} {value_of(one)}".rstrip()


def value_of(one: Declared) -> str:
    """Return the metavar of an option; empty for a flag."""
    if one.parameter.kind in ("flag", "maybe"):
        return ""
    if one.option.metavar:
        return one.option.metavar
    return "|".join(one.option.choices) or "TEXT"
