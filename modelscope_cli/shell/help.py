"""`--help`: one page a command. The options that all commands share take a line there, `--help-all` tells them all.

Written here and not by Rich: a page without boxes is half as long, and it is there before Rich is imported.
"""

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from typer.core import TyperCommand, TyperGroup

from modelscope_cli.shell import console, option_groups

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
# The panels of options that many commands share; each is a topic of `modelscope help`.
PANELS = {
    "Model": {"mode", *(field.name for field in fields(option_groups.LoadOptions))},
    "Input": {field.name for field in fields(option_groups.InputOptions)},
    "Output": {"out", "save", *(field.name for field in fields(option_groups.OutputOptions))},
}
_OWN = "Options"
_EXAMPLES = 3  # on a page that is not whole
_DEFAULT = re.compile(r"default: (\(.*\)|[^;\]]*)")
_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_LINES = 60  # of a page at 80 columns; a command that has fewer folds nothing
_NARROW, _WIDE, _MARGIN = 60, 100, 26  # columns: of a page, at least and at most; of the names of options


class Command(TyperCommand):
    """A command that writes its own help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        whole = "\n".join(page(self, ctx, is_whole=True))
        is_asked_for = HELP_ALL in console.settings.argv or whole.count("\n") < _LINES
        formatter.write(whole if is_asked_for else "\n".join(page(self, ctx, is_whole=False)))


class Group(TyperGroup):
    """The commands, in groups by what they are for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_overview(self, ctx)))


def page(command: Any, ctx: Any, *, is_whole: bool) -> Iterator[str]:
    """Yield the lines of a command's help; where it is not whole, the first sentence of everything."""
    yield _usage(command, ctx)
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
        yield _bold("Shared options")
        for panel, names in folded.items():
            yield from _filled(", ".join(names), f"  {panel:<8}", " " * 10)
    if not is_whole:
        yield ""
        yield f"More of each, and of the shared options: {ctx.command_path} {HELP_ALL}"


def page_of_panel(command: Any, panel: str, ctx: Any) -> Iterator[str]:
    """Yield the options of one panel."""
    inside = [one for one in command.params if getattr(one, "rich_help_panel", None) == panel]
    shared = [option for option in inside if option.name in PANELS[panel]]
    yield from _section(f"{panel} options", shared, ctx)


def rows_of(title: str, about: str, rows: Mapping[str, str]) -> Iterator[str]:
    """Yield a heading, what is said of it, and a list of terms with their meaning."""
    yield ""
    yield _bold(title)
    yield from _filled(about)
    for term, meaning in rows.items():
        yield from _entry(term, meaning)


def _usage(command: Any, ctx: Any) -> str:
    arguments = [piece for piece in command.collect_usage_pieces(ctx) if piece != "[OPTIONS]"]
    pieces = [*arguments, "[OPTIONS]"] if ctx.allow_interspersed_args else ["[OPTIONS]", *arguments]
    return f"{_bold('Usage:')} {' '.join([ctx.command_path, *pieces])}"


def _about(doc: str, is_whole: bool) -> Iterator[str]:
    """Yield the docstring: its paragraphs filled, its examples as they can be pasted."""
    about, _, examples = doc.partition("Examples:")
    paragraphs = [text for text in map(str.strip, about.split("\n\n")) if text]
    for paragraph in paragraphs if is_whole else paragraphs[:1]:
        yield from _filled(paragraph)
        yield ""
    commands = [text for text in map(str.strip, examples.split("\n\n")) if text]
    if commands:
        yield _bold("Examples")
    for command in commands if is_whole else commands[:_EXAMPLES]:
        yield from _pasteable(command)


def _pasteable(command: str) -> Iterator[str]:
    """Yield a command line that is broken between words, with a backslash, where it is too long."""
    line, margin = "", "  "
    for word in _words(command):
        if line and len(margin) + len(line) + len(word) + 3 > _width():
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
        yield _bold(title)
    for one, (_, about) in records:
        label = _label(one, ctx) if one.param_type_name == "option" else _argument(one)
        yield from _entry(label, about if is_whole else _first_sentence(about))


def _first_sentence(about: str) -> str:
    """Return the first sentence and the default; a range shows itself once it is left."""
    text, _, extra = about.partition("  [")
    default = _DEFAULT.match(extra)
    return _SENTENCE.split(text)[0] + (f" [{default[0]}]" if default else "")


def _entry(label: str, about: str) -> Iterator[str]:
    margin = " " * _MARGIN
    start = f"  {label}"
    if len(start) > _MARGIN - 2:
        yield start
        start = ""
    yield from _filled(about.replace("  [", " ["), start.ljust(_MARGIN), margin)


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


def _overview(group: Any, ctx: Any) -> Iterator[str]:
    from modelscope_cli.shell.app import GROUPS

    yield f"{_bold('Usage:')} modelscope COMMAND [ARGUMENTS] [OPTIONS]"
    yield ""
    yield from _filled(group.help or "")
    for title, names in GROUPS.items():
        yield ""
        yield _bold(title)
        for name in names:
            first = (group.get_command(ctx, name).help or "").partition("\n")[0]
            yield from _filled(first, f"  {name:<13}", " " * 15)
    yield from _section("Options", group.get_params(ctx), ctx)
    yield ""
    yield from _filled("modelscope COMMAND --help explains a command, and modelscope help what they share.")


def _filled(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        _width(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _width() -> int:
    return max(_NARROW, min(_WIDE, shutil.get_terminal_size().columns))


def _bold(text: str) -> str:
    is_plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if is_plain else f"\x1b[1m{text}\x1b[0m"
