"""What was meant by a command line that Typer could not read: the hint is the line that does it."""

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from modelscope_cli.shell.again import options_of, parameters, takes_value
from modelscope_cli.shell.other_tools import COMMANDS as THEIR_COMMANDS
from modelscope_cli.shell.other_tools import NEEDLESS, SYNONYMS
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.values import values_together

_WANTED = (
    (r"Input should be a valid integer.*", "it has to be a whole number"),
    (r"Input should be a valid number.*", "it has to be a number"),
    (r"Input should be greater than or equal to (\S+)", r"the least is \1"),
    (r"Input should be less than or equal to (\S+)", r"the most is \1"),
    (r"Value error, ('.*' is not one of .*)", r"\1"),
    (r"requires an argument", "needs a value"),
)
_PERCENT = re.compile(r"\d+(\.\d+)?%")
_NEAR = 0.75  # closer than that, and it was a slip of the finger


def what_was_meant(error: Exception, argv: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong with a command line, and the hint.

    Args:
        error: what Typer raised. It has a copy of its own of Click's exceptions, and does not export them.
    """
    kind = type(error).__name__
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = " ".join(message.split()).rstrip(".")
    command = argv[0] if argv and argv[0] in COMMANDS else None
    page = f"modelscope {command} --help" if command else "modelscope --help"
    if kind == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        again = _command_first(argv) if command is None else _with_option(option, argv)
        return f"no such option: {option}", _line(again) if again else page
    if found := re.fullmatch(r"No such command '(.*?)'.*", message):
        return f"no such command '{found[1]}'", _with_command(found[1], argv)
    if found := re.fullmatch(r"Got unexpected extra argument\(?s?\)? \((.*)\)", message):
        again = with_options(argv)
        return f"more arguments than '{command}' takes: {found[1]}", (
            _line(again) if again else f"leave out {found[1]}"
        )
    if (found := re.fullmatch(r"Option '(.*)' requires an argument", message)) and command:
        one = options_of(command)[found[1]]
        page = _line([*argv, str(one.metavar or one.opts[0].strip("-").upper())])
    if any(map(_PERCENT.fullmatch, argv)):
        page = _line([f"{float(w[:-1]) / 100:g}" if _PERCENT.fullmatch(w) else w for w in argv])
    for pattern, words in _WANTED:
        message = re.sub(f"{pattern}$", words, message)
    return message[:1].lower() + message[1:], page


def _line(words: Sequence[str]) -> str:
    return shlex.join(["modelscope", *words])


def _command_first(argv: Sequence[str]) -> list[str] | None:
    """Return a line that begins with an option the other way round; None where it names no command."""
    at = next((n for n, word in enumerate(argv) if word in COMMANDS), None)
    if at is None:
        return ["--version"] if list(argv) == ["-v"] else None
    known = options_of(argv[at])
    is_known = all(word.partition("=")[0] in known for word in argv[:at] if word.startswith("-"))
    return [argv[at], *argv[at + 1 :], *argv[:at]] if is_known else None


def with_options(argv: Sequence[str]) -> list[str] | None:
    """Return a line in which `key=value` stands for an option, as some tools have it; None where it has none."""
    words, is_changed = [argv[0]], False
    for before, word in pairwise(argv):
        key, equals, value = word.partition("=")
        is_free = equals and not before.startswith("-") and not os.path.exists(word)
        said = next(_meanings(f"--{key}", value, argv[0]), None) if is_free else None
        is_changed |= said is not None
        words += [word] if said is None else said[0]
    return words if is_changed else None


def _with_option(typed: str, argv: Sequence[str]) -> list[str] | None:
    """Return the line with the option that was meant; None where that is anybody's guess."""
    at = next((n for n, word in enumerate(argv) if word.partition("=")[0] == typed), None)
    if at is None:
        return _with_two_dashes(argv)
    _, equals, value = argv[at].partition("=")
    before, after = list(argv[:at]), list(argv[at + 1 :])
    if not equals and after and not after[0].startswith("-"):
        value = after[0]
    option = typed.replace("_", "-")
    for said, is_value_used in _meanings(option, value, argv[0]):
        line = [*before, *said, *after[is_value_used and not equals :]]
        break
    else:
        if option not in NEEDLESS:
            return None
        is_file = "." in value and not os.path.exists(value)
        line = [*before, "--output", value, *after[not equals :]] if is_file else [*before, *after]
    line = values_together(line) or line
    another = _unknown_option(line)
    return (_with_option(another, line) if another else None) or line


def _with_two_dashes(argv: Sequence[str]) -> list[str] | None:
    """Return the line with `--input-shape` for `-input-shape`, which is a row of short options."""
    known = options_of(argv[0])
    line = [f"-{word}" if f"-{word.partition('=')[0]}" in known else word for word in argv]
    return line if line != list(argv) else None


def _unknown_option(argv: Sequence[str]) -> str | None:
    """Return the first option that the command lacks; what follows a script is the script's own."""
    known = {*options_of(argv[0]), "--", "--help", "--help-all"}
    typed = (word.partition("=")[0] for word in argv[1:] if word.startswith("--") and argv[0] != "watch")
    return next((name for name in typed if name not in known), None)


def _meanings(option: str, value: str, command: str) -> Iterator[tuple[list[str], bool]]:
    """Give what an option of another tool may mean here, the likeliest first, and whether its value is in it."""
    known = options_of(command)
    has_arguments = any(one.param_type_name == "argument" for one in parameters(command))
    for form in (option, *SYNONYMS.get(f"{command} {option}", ()), *SYNONYMS.get(option, ())):
        name, _, fixed = form.partition(" ")
        if not name and has_arguments and value and not value.isdecimal():
            yield [value], True
        elif name in known and "{" in fixed and value.isdecimal():
            yield [name, fixed.format(value)], True
        elif name in known and "{" not in fixed:
            yield ([name, fixed], False) if fixed else _taking(known[name], name, value)
    if not _is_of_another_command(option):
        for name in difflib.get_close_matches(option, known, n=1, cutoff=_NEAR):
            yield _taking(known[name], name, value)


def _taking(option: Any, name: str, value: str) -> tuple[list[str], bool]:
    is_used = bool(value) and takes_value(option)
    return [name, value] if is_used else [name], is_used


def _is_of_another_command(option: str) -> bool:
    return any(option in options_of(name) for name in COMMANDS)


def _with_command(typed: str, argv: Sequence[str]) -> str:
    """Return the command line with the command that was meant: for a model its summary, for an image its maps."""
    from modelscope_cli.shell.named_model import names_model

    near = difflib.get_close_matches(typed.lower(), COMMANDS, n=1, cutoff=0.6)
    meant = THEIR_COMMANDS.get(typed.lower()) or next(iter(near), None)
    if meant is not None:
        return _line([meant, *argv[1:]])
    if names_model(typed):
        return _line(["summary", *argv])
    if os.path.exists(typed):
        return _line(["watch" if typed.endswith(".py") else "featuremaps", *argv])
    return "modelscope --help"
