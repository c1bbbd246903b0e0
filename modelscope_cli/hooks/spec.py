"""The grammar of `--hook`: `[KIND:]ACTION[=ARGS][CHANNELS]@PATTERN`. Text only, standard library.

zero@layer3                   the outputs of layer3 become 0
pre:add=10@linear             10 is added to the inputs of every linear layer
zero[3,7]@conv1  [0..15]      only these channels
grad:clamp=-1,1@conv          the gradients at the outputs of convolutions are clamped
call=path/to/hooks.py:fn@fc   a user's function, with PyTorch's signature for that kind

Everything after the first `@` is a layer pattern.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.hooks.patterns import parse_pattern

KINDS = ("forward", "pre", "grad")

Argument = int | float | str


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number") from None
    if math.isnan(value):
        raise ValueError("not a number")
    return value


def _non_negative(text: str) -> float:
    value = _number(text)
    if not 0 <= value < math.inf:
        raise ValueError("not a number of 0 or more")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise ValueError("not a whole number above 0")
    return int(text)


def _safetensors(text: str) -> str:
    if not text.lower().endswith(".safetensors"):
        raise ValueError("not a file that ends in .safetensors")
    return text


def _function(text: str) -> str:
    where, _, name = text.rpartition(":")
    if not (where and name):
        raise ValueError("not of the form path/to/file.py:function")
    return text


@dataclass(frozen=True, slots=True)
class Action:
    """The arguments of an action."""

    example: str  # its syntax
    # One parser per argument; raises ValueError with the reason, `not a number`
    reads: tuple[Callable[[str], Argument], ...] = ()


ACTIONS = {
    "zero": Action("zero"),
    "scale": Action("scale=2", (_number,)),
    "add": Action("add=10", (_number,)),
    "clamp": Action("clamp=-1,1", (_number, _number)),
    "noise": Action("noise=0.1", (_non_negative,)),
    "mean": Action("mean"),
    "keep": Action("keep=5", (_count,)),
    "print": Action("print"),
    "save": Action("save=FILE.safetensors", (_safetensors,)),
    "nan-to-num": Action("nan-to-num"),
    "raise-on-nan": Action("raise-on-nan"),
    "call": Action("call=path/to/hooks.py:fn", (_function,)),
}
READ_ONLY = frozenset({"print", "save", "raise-on-nan"})  # these change nothing


Range = tuple[int, int]  # first and last, both included
_RANGE = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?\Z", re.ASCII)


def parse_range(part: str) -> Range:
    """Parse `7` or `10..20` to the first and last channel."""
    match = _RANGE.match(part)
    if not match:
        raise ValueError("is not a channel such as 3 or 0..15", "")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise ValueError("counts backwards", f"{last}..{first}")
    return first, last


def channels_of(text: str) -> tuple[Range, ...]:
    """Parse `3,7,10..20` to ranges, in order."""
    ranges = []
    for part in text.split(","):
        try:
            ranges.append(parse_range(part.strip()))
        except ValueError as error:
            raise ValueError(*error.args, part) from None
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class HookSpec:
    """One parsed `--hook`; `str()` gives text that parses to an equal one."""

    kind: str
    action: str
    arguments: tuple[Argument, ...]
    channels: tuple[tuple[int, int], ...]  # `(first, last)` ranges, both included; empty for all channels
    pattern: str  # layer pattern, as in `--layer`

    def __str__(self) -> str:
        return f"{self.head}@{self.pattern}"

    @property
    def head(self) -> str:
        """The text before the `@`."""
        kind = "" if self.kind == "forward" else f"{self.kind}:"
        arguments = f"={','.join(map(_as_text, self.arguments))}" if self.arguments else ""
        ranges = (f"{first}" if first == last else f"{first}..{last}" for first, last in self.channels)
        channels = f"[{','.join(ranges)}]" if self.channels else ""
        return f"{kind}{self.action}{arguments}{channels}"


def _as_text(argument: Argument) -> str:
    return repr(argument).removesuffix(".0") if isinstance(argument, float) else str(argument)


def parse_hook(text: str) -> HookSpec:
    """Parse one `--hook` value."""
    return _Parser(text).parse()


def function_hook(kind: str, pattern: str, name: str) -> HookSpec:
    """Return the hook that calls a Python function, with its name in messages."""
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        message = f"'{kind}' is not a kind of hook" + (f": {near}" if near else "")
        raise UsageError(message, near or f"try {', '.join(KINDS)}")
    parse_pattern(pattern)
    return HookSpec(kind, "call", (name,), (), pattern)


_NAME = re.compile(r"[^=\[]*")
_CHANNELS = re.compile(r"\[[^\[\]]*\]")
_CHANNELS_AT_END = re.compile(rf"(?:{_CHANNELS.pattern})?\Z")


class _Parser:
    """Parser from left to right; positions count from 0 here and from 1 in messages."""

    def __init__(self, text: str) -> None:
        self._text = text

    def parse(self) -> HookSpec:
        head, at, pattern = self._text.partition("@")
        if not at or not pattern:
            problem = "no layer after '@'" if at else "no '@LAYER'"
            self._fail(problem, len(self._text), self._example(head if head in ACTIONS else "zero"))
        start, kind = self._kind(head)
        match = _NAME.match(head, start)
        assert match is not None  # it may be empty
        action, end = match.group(), match.end()
        if action not in ACTIONS:
            self._unknown("action", action, start, ACTIONS)
        match = _CHANNELS_AT_END.search(head, end)
        assert match is not None  # it may be empty
        brackets = match.start()
        if end < brackets and head[end] != "=":
            self._bad_suffix(head, end, action)
        arguments = self._arguments(action, head, end, brackets)
        parts = _split(head, brackets + 1, len(head) - 1) if brackets < len(head) else ()
        channels = tuple(self._range(*part) for part in parts)
        if action == "call" and channels:
            self._fail(
                f"call does not take '{head[brackets:]}': its function receives the whole tensor",
                brackets,
                self._example(action),
            )
        try:
            parse_pattern(pattern)
        except UsageError as error:
            raise about_pattern(self._text, error, (len(head) + 1)) from None
        return HookSpec(kind, action, arguments, channels, pattern)

    @property
    def _layer(self) -> str:
        """Return the typed layer, or a placeholder."""
        return self._text.partition("@")[2] or "LAYER"

    def _example(self, action: str) -> str:
        return f"{ACTIONS[action].example}@{self._layer}"

    def _fail(self, problem: str, place: int, example: str, near: str = "") -> NoReturn:
        where = f"at character {place + 1}" if place < len(self._text) else "at the end"
        near = f": {near}" if near else ""
        raise UsageError(f"--hook '{self._text}': {problem} {where}{near}", f"--hook '{example}'")

    def _unknown(self, noun: str, word: str, place: int, words: Iterable[str]) -> NoReturn:
        near = nearest(word, words, n=1)
        if not near:
            self._fail(
                f"unknown {noun} '{word}'", place, self._example("zero"), f"there are {', '.join(words)}"
            )
        best = near.rpartition(" ")[2]
        corrected = self._text[:place] + best + self._text[place + len(word) :]
        self._fail(f"unknown {noun} '{word}'", place, corrected, near)

    def _kind(self, head: str) -> tuple[int, str]:
        """Return the start of the action, and the kind; in `call=file.py:fn` the colon follows the `=`."""
        kind, colon, _ = head.partition("=")[0].partition(":")
        if not colon:
            return 0, "forward"
        if kind not in KINDS:
            self._unknown("kind", kind, 0, KINDS)
        return len(kind) + 1, kind

    def _bad_suffix(self, head: str, place: int, action: str) -> NoReturn:
        match = _CHANNELS.match(head, place)
        if match and head.startswith("=", match.end()):
            moved = f"{head[:place]}{head[match.end() :]}{match.group()}{self._text[len(head) :]}"
            self._fail(f"the argument of {action} comes before '{match.group()}'", match.end(), moved)
        if match:
            problem = f"'{head[match.end() :]}' follows the channels"
            self._fail(problem, match.end(), f"{head[: match.end()]}@{self._layer}")
        self._fail(f"'{head[place]}' is not closed", place, f"{head[:place]}@{self._layer}")

    def _arguments(self, action: str, head: str, start: int, end: int) -> tuple[Argument, ...]:
        parts = _split(head, start + 1, end) if start < end else []
        read = ACTIONS[action].reads
        if action in ("call", "save"):  # a path may contain commas
            parts = [(head[start + 1 : end], start + 1)] if start < end else []
        if len(parts) != len(read):
            takes = f"{len(read) or 'no'} argument" + ("s" if len(read) != 1 else "")
            place = start if len(parts) < len(read) else parts[len(read)][1]
            self._fail(f"{action} takes {takes}, not {len(parts)},", place, self._example(action))
        values = []
        for reader, (part, place) in zip(read, parts, strict=True):
            try:
                values.append(reader(part))
            except ValueError as error:
                self._fail(f"'{part}' is {error}", place, self._example(action))
        if action == "clamp" and float(values[0]) > float(values[1]):
            self._fail(
                f"{_as_text(values[0])} is above {_as_text(values[1])}",
                parts[0][1],
                f"{head[: start + 1]}{parts[1][0]},{parts[0][0]}{self._text[end:]}",
            )
        return tuple(values)

    def _range(self, part: str, place: int) -> tuple[int, int]:
        try:
            return parse_range(part)
        except ValueError as error:
            problem, suggestion = error.args
            better = f"{self._text[:place]}{suggestion or '0'}{self._text[place + len(part) :]}"
            self._fail(f"'{part}' {problem}", place, better)


def about_pattern(text: str, error: UsageError, place: int | None = None) -> UsageError:
    """Return the error of a hook's layer pattern as an error of the hook."""
    where = f" at character {place + 1}" if place is not None else ""
    hint = (error.hint or "").replace("--layer '", f"--hook '{text.partition('@')[0]}@")
    return UsageError(f"--hook '{text}'{where}: {error.message}", hint)


def _split(text: str, start: int, end: int) -> list[tuple[str, int]]:
    parts = []
    for part in text[start:end].split(","):
        parts.append((part, start))
        start += len(part) + 1
    return parts
