"""The manual page of `man modelscope`: every command with its arguments and options, from the program."""

import re

from modelscope_cli.shell.help import label, usage
from modelscope_cli.shell.overview import ABOUT, GROUPS
from modelscope_cli.shell.parameters import Parameter, parameters_of
from tools.docs.commands import commands, example_lines

_EXIT_CODES = {
    "0": "done, and nothing is wrong",
    "1": "a rule is broken, two things differ, or dangerous code was found",
    "2": "the command line is wrong",
    "4": "the model or a file cannot be used",
    "130": "interrupted",
}
_HEAD = r""".\" Made by python -m tools.docs
.TH MODELSCOPE 1 "" modelscope "User Commands"
.SH NAME
modelscope \- see what happens inside a PyTorch vision model
.SH SYNOPSIS
.B modelscope
.I COMMAND
[\fIARGUMENTS\fR] [\fIOPTIONS\fR]
"""


def manual() -> str:
    """Return the page in the macros of man(7)."""
    lines = [
        ".SH DESCRIPTION",
        _text(f"{ABOUT} Every command has a page of its own: modelscope COMMAND --help."),
    ]
    every = commands()
    for title, names in GROUPS.items():
        lines.append(f".SH {_text(title).upper()}")
        for name in names:
            lines += _command(name, every[name].help or "")
    lines += [*_shared(), ".SH EXIT STATUS"]
    for code, meaning in _EXIT_CODES.items():
        lines += [".TP", f".B {code}", _text(meaning)]
    lines += [".SH ENVIRONMENT", ".TP", ".B MSCOPE_OFFLINE", "never use the network"]
    return _HEAD + "\n".join(lines) + "\n"


def _command(name: str, text: str) -> list[str]:
    about, _, examples = text.partition("Examples:")
    lines = [f".SS modelscope {name}", ".nf", _text(usage(f"modelscope {name}")), ".fi"]
    for paragraph in filter(None, about.strip().split("\n\n")):
        lines += [".PP", _text(paragraph)]
    for one in parameters_of(name).values():
        if not one.is_shared:
            lines += _option(one)
    if examples:
        lines += [".PP", "Examples:", ".nf", *map(_text, example_lines(examples)), ".fi"]
    return lines


def _shared() -> list[str]:
    """Return the options that many commands have, once each."""
    found = {one.name: one for name in commands() for one in parameters_of(name).values() if one.is_shared}
    return [".SH OPTIONS OF MANY COMMANDS", *(line for one in found.values() for line in _option(one))]


def _option(one: Parameter) -> list[str]:
    return [".TP", f".B {_text(label(one))}", _text(one.help)]


def _text(words: str) -> str:
    """Return one line of text, with what the macros read escaped."""
    line = re.sub(r"\s+", " ", words).strip().replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{line}" if line[:1] in (".", "'") else line
