"""What a person does with a hint: paste it. The grammar of hints stands in `modelscope_cli/errors.py`."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.typer_app import make_app

# Programs of others that a hint may name.
TOOLS = {
    "cd", "curl", "df", "file", "find", "git", "grep", "head", "hf", "ls", "magick", "mkdir", "mv",
    "pip", "python", "rm", "tar", "torchrun",
}  # fmt: skip
_REPLACING = re.compile(r"(did you mean|try) (?P<words>.+)")
_BETWEEN = re.compile(r",? or (?=--|leave out|modelscope |')|; (?=--|leave out|modelscope )")


class NotAHintError(AssertionError):
    """A hint that is not what the grammar knows, or that names what its command lacks."""


@dataclass(frozen=True)
class Pasted:
    """One thing to run: a command line of ours (`tool` empty), or that of another program."""

    line: tuple[str, ...]
    tool: str = ""
    stdin: str = ""


def pasted(hint: str, typed: Sequence[str], message: str, words: dict[str, str]) -> list[Pasted]:
    """Return what is run by somebody who pastes each alternative of a hint below the line that failed.

    Args:
        typed: the line, without `modelscope`.
        words: what stands for a word in capitals, such as FILE.

    Raises:
        NotAHintError: nothing of it can be pasted; a hint in words.
    """
    text = hint.partition("   ")[0]
    return [_alternative(part, list(typed), message, words) for part in _BETWEEN.split(text)]


def _alternative(text: str, typed: list[str], message: str, words: dict[str, str]) -> Pasted:
    replacing = _REPLACING.fullmatch(text)
    if replacing or re.fullmatch(r"'[^']+'", text):
        new = shlex.split(replacing["words"].split(", ")[0])[0] if replacing else text[1:-1]
        return Pasted(tuple(_replaced(typed, message, new)))
    try:
        said = shlex.split(_known(text, words))
    except ValueError as error:
        raise NotAHintError(f"no shell reads {text!r}: {error}") from error
    if said[0] in ("modelscope", "mscope"):
        if "<" in said:
            return Pasted(tuple(said[1 : said.index("<")]), stdin=said[-1])
        return Pasted(tuple(said[1:]))
    if said[0].startswith("-") and len(said[0]) > 1:
        return Pasted(tuple(_with_options(typed, said, message)))
    if said[:2] == ["leave", "out"] and (said[2].startswith("-") or set(said[2:]) <= set(typed)):
        parts = [shlex.split(part) for part in shlex.join(said[2:]).split(" and ")]
        present = [part for part in parts if any(word.partition("=")[0] == part[0] for word in typed)]
        for part in present or parts:
            typed = _without(typed, part, message)
        return Pasted(tuple(typed))
    if said[0] in TOOLS:
        return Pasted(tuple(said), tool=said[0])
    raise NotAHintError(f"cannot be pasted: {text!r}")


def _known(text: str, words: dict[str, str]) -> str:
    """Put in what the person knows."""
    for unknown in sorted(words, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(unknown)}(?![\w.:-])", words[unknown], text)
    return text


@cache
def parameters(command: str) -> dict[str, Any]:
    """Return the options of a command by all their spellings."""
    if command not in COMMANDS:
        raise NotAHintError(f"there is no command '{command}'")
    group: Any = typer.main.get_command(make_app([command]))
    found = {}
    for one in group.commands[command].params:
        if one.param_type_name == "option":
            found |= dict.fromkeys([*one.opts, *one.secondary_opts], one)
    return found


@dataclass(frozen=True)
class _Word:
    """An option with its value, or one argument: `words` of the line."""

    words: tuple[str, ...]
    option: Any = None

    @property
    def value(self) -> str:
        return self.words[-1].partition("=")[2] if "=" in self.words[0] else self.words[-1]


def _taken_apart(command: str, line: Sequence[str]) -> list[_Word]:
    known, parts, position = parameters(command), [], 0
    while position < len(line):
        word = line[position]
        option = known.get(word.partition("=")[0]) if word.startswith("-") else None
        has_value = option is not None and not (option.is_flag or option.count) and "=" not in word
        parts.append(_Word(tuple(line[position : position + 1 + has_value]), option))
        position += 1 + has_value
    return parts


def _with_options(typed: list[str], said: list[str], message: str) -> list[str]:
    """Put options into a line: each replaces the same option, the model also the model by position."""
    command, *rest = typed
    parts, new = _taken_apart(command, rest), _taken_apart(command, said)
    for one in new:
        if one.option is None and one.words[0].startswith("-"):
            raise NotAHintError(f"{command} has no option '{one.words[0]}'")
    kept = parts
    for option in {id(one.option): one.option for one in new if one.option is not None}.values():
        same = [part for part in kept if part.option is option]
        if option.multiple and len(same) > 1:
            same = _those_meant(same, {one.value for one in new if one.option is option}, message)
        keys = {name.lstrip("-").replace("-", "_") for name in option.opts}
        same += [p for p in kept if p.words[0] == "--model-arg" and p.value.partition("=")[0] in keys]
        kept = [part for part in kept if part not in same]
        if "--model" in option.opts and not same:
            named = [part for part in kept if part.option is None and f"'{part.words[0]}'" in message]
            named = named or [part for part in kept if part.option is None and part.words[0] in message]
            kept = [part for part in kept if part not in named[:1]]
        if {"--input", "--input-shape"} & {*option.opts}:
            kept = [part for part in kept if not _is_input(part, command)]
    is_script = command == "watch"  # what follows the script belongs to the script
    ordered = [*new, *kept] if is_script else [*kept, *new]
    return [command, *(word for part in ordered for word in part.words)]


def _those_meant(same: list[_Word], values: set[str], message: str) -> list[_Word]:
    """Return which of several are replaced: those of the same keys, or those that the error speaks of."""
    keys = {value.partition("=")[0] for value in values if "=" in value}
    if keys:
        return [
            p
            for p in same
            if p.value.partition("=")[0] in keys or f"'{p.value.partition('=')[0]}'" in message
        ]
    return [part for part in same if part.value and part.value in message] or same


def _is_input(part: _Word, command: str) -> bool:
    """Tell an image or a tensor by position, or a shape of noise, in the place of which something else is given."""
    if part.option is not None:
        is_unnamed = "--input" in part.option.opts and "=" not in part.value
        return is_unnamed or bool({"--input-shape", "--size"} & {*part.option.opts})
    word = part.words[0]
    is_model = ":" in word or command in {"summary", "check"} or (command == "diff" and "tensors" in word)
    return not is_model and Path(part.words[0]).exists()


def _without(typed: list[str], said: list[str], message: str) -> list[str]:
    command, *rest = typed
    option = parameters(command).get(said[0])
    if not said[0].startswith("-"):
        for word in said:
            del typed[len(typed) - 1 - typed[::-1].index(word)]
        return typed
    if option is None:
        raise NotAHintError(f"{command} has no option '{said[0]}'")
    parts = _taken_apart(command, rest)
    same = [part for part in parts if part.option is option]
    if len(said) > 1:
        same = [part for part in same if part.value == said[1]] or [
            part for part in same if part.words[-1] in said
        ]
    if not same:
        raise NotAHintError(f"'{said[0]}' is to be left out, and is not in {shlex.join(typed)}")
    return [command, *(word for part in parts if part not in same for word in part.words)]


def _replaced(typed: list[str], message: str, new: str) -> list[str]:
    """Put `new` where the first word stands that the message quotes."""
    quoted = [*re.findall(r"'([^']+)'", message), *re.findall(r"'(--\S+ [^']*)'", message)]
    if message.startswith("--hook '"):
        quoted = quoted[1:]  # it speaks of a part of the hook
    for old in quoted:
        for position in range(len(typed) - 1, -1, -1):
            if old == typed[position] or (position and old in typed[position]):
                changed = typed[position].replace(old, new, 1)
                return [*typed[:position], changed, *typed[position + 1 :]]
    raise NotAHintError(f"'{new}' is to replace a word, and none of {quoted} is in {shlex.join(typed)}")
