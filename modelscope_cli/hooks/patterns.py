"""Layer patterns of the command line. Text only, standard library.

layer1.0.conv1          exactly that layer; layer1.0.relu#1 only its second call
layer1.*  *.bn?         glob over the qualified name
conv  relu  linear      leaf layers of a class whose name starts with the word, any case, or of one derived from it
norm  pool              a word that no class name starts with: classes that contain it
layer3                  a bare word that is a layer's name means that layer
type:Conv2d  type:*Norm class name, exact or glob, leaf or not
re:^layer[12]\\.         regular expression, searched in the qualified name
conv@16  conv@-1  @2..4 of the layers before `@`, the 16th call in execution order (1-based), the last, a range;
                        with nothing before `@`, of all leaf layers
"""

import re
import shlex
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from modelscope_cli.errors import UsageError, each_layer, nearest_by_number, nearest_names
from modelscope_cli.records.naming import counted, some


@dataclass(frozen=True, slots=True)
class Layer:
    """A named module of a model, for matching patterns."""

    name: str  # qualified name; empty for the model itself
    type: str  # class name
    is_leaf: bool  # has no inner layers that run (attention counts as a leaf: its child only holds a weight)
    depth: int = 0  # 0 for the model itself, 1 for its children
    aliases: tuple[str, ...] = ()  # other qualified names of the same module
    bases: tuple[str, ...] = ()  # names of its base classes

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One parsed pattern; `str()` gives back what was typed."""

    text: str
    body: str  # the layer part, without `#` and `@`; empty for all leaf layers
    call: int | None = None  # 0-based call of `#`, else None
    # first, last: 1-based positions of `@` (negative from the end), else None
    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def is_positional(self) -> bool:
        """Whether the pattern selects by call order."""
        return self.call is not None or self.first is not None

    def matches(self, layer: Layer, bodies_are_names: bool) -> bool:
        """Tell whether `layer` matches; `bodies_are_names`: some layer has exactly this name."""
        if bodies_are_names:
            return self.body in layer.names
        if not self.body:
            return layer.is_leaf
        kind, _, rest = self.body.partition(":")
        if kind == "type":
            return fnmatchcase(layer.type, rest)
        if kind == "re":
            return any(re.search(rest, name) for name in layer.names if name)
        if any(mark in self.body for mark in "*?["):
            return any(fnmatchcase(name, self.body) for name in layer.names if name)
        kinds = (layer.type, *layer.bases)
        return layer.is_leaf and any(kind.lower().startswith(self.body.lower()) for kind in kinds)

    def is_inside_type_of(self, layer: Layer) -> bool:
        """Tell whether the pattern is a word in the class name of a leaf layer."""
        is_word = len(self.body) >= _LEAST_WORD and self.body.isidentifier()
        return is_word and layer.is_leaf and self.body.lower() in layer.type.lower()


_LEAST_WORD = 3
_SUFFIXES = re.compile(
    r"^(?P<body>.*?)(?:#(?P<call>\d{1,9}))?(?:@(?P<first>-?\d{1,9})(?:\.\.(?P<last>-?\d{1,9}))?)?\Z",
    re.DOTALL | re.ASCII,
)


@lru_cache(maxsize=256)
def parse_pattern(text: str) -> Pattern:
    """Parse one `--layer` value."""
    match = _SUFFIXES.match(text)
    assert match is not None  # the body takes whatever the suffixes leave
    body, call, first, last = match.group("body", "call", "first", "last")
    if (not body and not first) or body in ("type:", "re:"):
        message = f"layer pattern '{text}' does not name a layer"
        raise UsageError(message, "modelscope summary ...   lists the layers")
    if "@" in body and not body.startswith("re:"):
        message = f"layer pattern '{text}': what follows '@' must be a position such as 16, -1 or 1..4"
        raise UsageError(message, f"try {shlex.quote(body.partition('@')[0] + '@1')}")
    if body.startswith("re:"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about regular expressions with a future meaning
                re.compile(body[3:])
        except (re.error, OverflowError, RecursionError) as error:
            message = f"layer pattern '{text}' is not a regular expression: {error}"
            raise UsageError(message, f"try {shlex.quote(f're:{re.escape(body[3:])}')}") from None
    if "0" in (first, last):
        raise UsageError(f"layer pattern '{text}': positions count from 1", f"try {shlex.quote(f'{body}@1')}")
    n_first = int(first) if first else None
    return Pattern(text, body, int(call) if call else None, n_first, int(last) if last else n_first)


EVERY_LAYER = Pattern("re:", "re:")


def explain(pattern: Pattern, layers: Sequence[Layer]) -> str | None:
    """Return a note on a bare word that is both a layer name and a type prefix, or neither; else None."""
    if not any(pattern.body in layer.names for layer in layers):
        if any(pattern.matches(layer, False) for layer in layers):
            return None
        types = sorted({layer.type for layer in layers if pattern.is_inside_type_of(layer)})
        what = f"'{pattern.body}' is neither a layer nor the beginning of a layer type"
        return f"{what}; the types that contain it are used: {some(types)}" if types else None
    if not pattern.body:
        return None
    others = [layer for layer in layers if pattern.matches(layer, False) and pattern.body not in layer.names]
    if not others:
        return None
    kind = others[0].type
    n = sum(layer.type == kind for layer in others)
    is_one = any(pattern.body in layer.names and layer.type == kind for layer in layers)
    which = f": 1 of {n + 1} {kind} layers" if is_one else ""
    return f"layer '{pattern.body}' is the name of a layer here{which}; type:{kind} selects all {n + is_one}"


def match_layers(
    pattern: Pattern, layers: Sequence[Layer], offered: Sequence[Layer] | None = None
) -> list[Layer]:
    """Return the layers a pattern matches, in the given order, before `#` and `@` narrow their calls.

    Args:
        offered: the layers that the error for a pattern without a match may propose; None for all.
    """
    # A name wins over other readings, so that unusual names ("0", "conv") stay reachable.
    is_name = bool(pattern.body) and any(pattern.body in layer.names for layer in layers)
    matched = [layer for layer in layers if pattern.matches(layer, is_name)]
    matched = matched or [layer for layer in layers if pattern.is_inside_type_of(layer)]
    if not matched:
        message = f"layer pattern '{pattern}' matches no layer"
        raise UsageError(message, _what_is_there(pattern, offered or layers))
    return matched


def _what_is_there(pattern: Pattern, layers: Sequence[Layer]) -> str:
    """Return a hint for a pattern that matches none of the layers: the nearest of them, and which there are."""
    if "," in pattern.body.strip(", ") and not pattern.body.startswith("re:"):

        def is_known(part: str) -> bool:
            with suppress(UsageError):
                return bool(match_layers(parse_pattern(part), layers))
            return False

        return each_layer(pattern.body, is_known, [name for layer in layers for name in layer.names if name])
    word = pattern.body.partition(":")[2] or pattern.body
    names = [name for layer in layers for name in layer.names if name]
    near = nearest_by_number(word, names) or nearest_names(word, names)
    levels = ([layer.name for layer in layers if layer.depth == depth] for depth in (1, 2, 3))
    outer = next((level for level in levels if len(level) > 1), names)
    types = sorted({layer.type for layer in layers if layer.is_leaf})
    usual = next((type for type in types if type.startswith(("Conv", "Linear"))), types[0] if types else "*")
    pasted = f"did you mean {', '.join(near)}" if near else f"try type:{usual}"
    return f"{pasted}   layers: {some(outer, 8)}; types: {some(types, 8)}"


def pick_calls(
    pattern: Pattern, layers: Sequence[Layer], calls: Iterable[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return the `(layer name, call index)` pairs a pattern matches in `calls`, which are in execution order."""
    names, calls = {layer.name for layer in match_layers(pattern, layers)}, list(calls)
    candidates = [(name, index) for name, index in calls if name in names]
    if pattern.call is not None:
        n_calls = len(candidates)
        candidates = [pair for pair in candidates if pair[1] == pattern.call]
        if not candidates:
            raise UsageError(
                f"layer pattern '{pattern}': there is no call #{pattern.call} ({n_calls} calls, counted from #0)",
                f"try {shlex.quote(pattern.body)}",
            )
    if pattern.first is None or pattern.last is None:
        return candidates
    n = len(candidates)
    first, last = (place - 1 if place > 0 else n + place for place in (pattern.first, pattern.last))
    if first > last:
        turned = f"try {shlex.quote(f'{pattern.body}@{pattern.last}..{pattern.first}')}"
        raise UsageError(f"layer pattern '{pattern}' ends before it begins ({counted(n, 'call')})", turned)
    if last < 0 or first >= n:
        exist = f", so positions 1..{n} or -{n}..-1 exist" if n > 1 else "" if n else " in this forward"
        whose = f"'{pattern.body}'" if pattern.body else "the model"
        hint = f"try {shlex.quote(pattern.body or '@1')}"
        kind = next((layer.type for layer in layers if pattern.is_inside_type_of(layer)), None)
        if kind is not None and not pattern.body.startswith("type:"):  # a layer may have the name of a type
            of_type = parse_pattern(str(pattern).replace(pattern.body, f"type:{kind}", 1))
            with suppress(UsageError):
                if pick_calls(of_type, layers, calls):
                    hint = f"try {shlex.quote(str(of_type))}   counted among all {kind} layers"
        raise UsageError(f"layer pattern '{pattern}': {whose} has {counted(n, 'call')}{exist}", hint)
    return candidates[max(first, 0) : last + 1]


def falls_short(pattern: Pattern, layers: Sequence[Layer], calls: Iterable[tuple[str, int]]) -> str | None:
    """Return a note with the number of calls if a range reaches beyond them; else None."""
    if pattern.first is None or pattern.first == pattern.last:
        return None
    every = replace(pattern, first=None, last=None)
    n = len(pick_calls(every, layers, calls))
    if max(abs(pattern.first), abs(pattern.last or 0)) <= n:
        return None
    return f"layer '{pattern}' stops at the last call: {counted(n, 'call')} in all"
