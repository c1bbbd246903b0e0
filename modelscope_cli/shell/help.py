"""`--help`: one page a command. The options that all commands share take a line there, `--help-all` tells them all.

Written here and not by Rich: a page without boxes is half as long, and it is there before Rich is imported.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from typer.core import TyperCommand, TyperGroup

from modelscope_cli.shell import console, option_groups
from modelscope_cli.shell.overview import HELP_ALL, overview
from modelscope_cli.shell.pages import bold, entry, filled, width
from modelscope_cli.shell.parsing import LeanParsing

# The panels of options that many commands share; each is a topic of `modelscope help`.
PANELS = {
    "Model": {"mode", *(field.name for field in fields(option_groups.LoadOptions))},
    "Input": {field.name for field in fields(option_groups.InputOptions)},
    "Output": {"out", "save", "resume", *(field.name for field in fields(option_groups.OutputOptions))},
}
_OWN = "Options"
_EXAMPLES = 3  # on a page that is not whole
_DEFAULT = re.compile(r"default: (\(.*\)|[^;\]]*)")
_IN_WORDS = re.compile(r"default: \(([^()]*)\)")
_AT_LEAST = re.compile(r"\bx>=(\d+)(?=[;\]])")
_SENTENCE = re.compile(r"(?<=[.?!])(?<!et al\.)\s+")
_LINES = 60  # of a page at 80 columns; a command that has fewer folds nothing


class Command(LeanParsing, TyperCommand):
    """A command that writes its own help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        whole = "\n".join(page(self, ctx, is_whole=True))
        is_asked_for = HELP_ALL in console.settings.argv or whole.count("\n") < _LINES
        formatter.write(whole if is_asked_for else "\n".join(page(self, ctx, is_whole=False)))


class Group(LeanParsing, TyperGroup):
    """The commands, in groups by what they are for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(overview())


def page(command: Any, ctx: Any, *, is_whole: bool) -> Iterator[str]:
    """Yield the lines of a command's help; where it is not whole, the first sentence of everything."""
    yield f"{bold('Usage:')} " + usage(command, ctx)
    yield ""
    yield from _about(command.help or "", is_whole)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    yield from _section("Arguments", arguments, ctx, is_whole)
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    folded: dict[str, list[str]] = {}
    panels: dict[str, list[Any]] = {}
    for option in options:
        panel = option.rich_help_panel or _OWN
        if is_whole or option.name not in PANELS.get(panel, ()):
            panels.setdefault(panel if is_whole or panel not in PANELS else _OWN, []).append(option)
        else:
            folded.setdefault(panel, []).append(option.opts[0])
    for panel, inside in panels.items():
        yield from _section(panel, inside, ctx, is_whole)
    if folded:
        yield ""
        yield bold("Shared options")
        for panel, names in folded.items():
            yield from filled(", ".join(names), f"  {panel:<8}", " " * 10)
    if not is_whole:
        yield ""
        yield f"More of each, and of the shared options: {ctx.command_path} {HELP_ALL}"


def page_of_panel(command: Any, panel: str, ctx: Any) -> Iterator[str]:
    """Yield the options of one panel."""
    inside = [one for one in command.params if getattr(one, "rich_help_panel", None) == panel]
    shared = [option for option in inside if option.name in PANELS[panel]]
    yield from _section(f"{panel} options", shared, ctx)


def usage(command: Any, ctx: Any) -> str:
    """Return what can be typed: `modelscope stats [MODEL] [IMAGE]... [OPTIONS]`."""
    arguments = [piece for piece in command.collect_usage_pieces(ctx) if piece != "[OPTIONS]"]
    # Typer puts braces around what is required, and a second pair of brackets around what is not.
    arguments = [re.sub(r"^\{(.*)\}|^\[(\[.*\])\]$", r"\1\2", piece) for piece in arguments]
    pieces = [*arguments, "[OPTIONS]"] if ctx.allow_interspersed_args else ["[OPTIONS]", *arguments]
    return " ".join([ctx.command_path, *pieces])


def _about(doc: str, is_whole: bool) -> Iterator[str]:
    """Yield the docstring: its paragraphs filled, its examples as they can be pasted."""
    about, _, examples = doc.partition("Examples:")
    paragraphs = [text for text in map(str.strip, about.split("\n\n")) if text]
    for paragraph in paragraphs if is_whole else paragraphs[:1]:
        yield from filled(paragraph)
        yield ""
    commands = [text for text in map(str.strip, examples.split("\n\n")) if text]
    if commands:
        yield bold("Examples")
    for command in commands if is_whole else commands[:_EXAMPLES]:
        yield from _pasteable(command)


def _pasteable(command: str) -> Iterator[str]:
    """Yield a command line that is broken between words, with a backslash, where it is too long."""
    line, margin = "", "  "
    for word in _words(command):
        if line and len(margin) + len(line) + len(word) + 3 > width():
            yield f"{margin}{line} \\"
            line, margin = word, "    "
        else:
            line = f"{line} {word}".strip()
    yield f"{margin}{line}"


def _words(command: str) -> list[str]:
    """Cut a command line at its blanks, but for those in quotes."""
    lexer = shlex.shlex(command, posix=False, punctuation_chars="")
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(lexer)


def _section(title: str, params: Iterable[Any], ctx: Any, is_whole: bool = True) -> Iterator[str]:
    """Yield a heading and its options; of each its first sentence, or all that is said of it."""
    records = [(one, record) for one in params if (record := one.get_help_record(ctx))]
    if records:
        yield ""
        yield bold(title)
    for one, (_, about) in records:
        label = _label(one, ctx) if one.param_type_name == "option" else _argument(one)
        shown = about if is_whole else _first_sentence(about)
        yield from entry(label, _AT_LEAST.sub(r"at least \1", _IN_WORDS.sub(r"default: \1", shown)))


def _first_sentence(about: str) -> str:
    """Return the first sentence and the default; a range shows itself once it is left."""
    text, _, extra = about.partition("  [")
    default = _DEFAULT.match(extra)
    return _SENTENCE.split(text)[0] + (f" [{default[0]}]" if default else "")


def _label(option: Any, ctx: Any) -> str:
    """Return `-l, --layer PATTERN`; of a flag its names alone."""
    names = ", ".join(_names(option))
    if option.is_flag:
        return names
    return f"{names} {str(option.display_type_rich(ctx)).strip('<>')}"


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _names(option: Any) -> list[str]:
    """Return the short name first, and of a flag that can be denied the other name too."""
    return [*sorted(option.opts, key=len), *option.secondary_opts]
