"""From what a pickle describes to named tensors, and a word on everything beside them. Standard library."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from modelscope_cli.checkpoints.entries import Contents, Names, TensorEntry
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque
from modelscope_cli.checkpoints.pickled_modules import state_of_module
from modelscope_cli.checkpoints.unwrap import find_state
from modelscope_cli.checkpoints.walk import IsTensor, all_tensors, first_key, walk
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import with_article

# Describes the tensor that a name stands for.
ToEntry = Callable[[str, Any], TensorEntry]

_MAX_TEXT = 60
# Of what stands beside the tensors: how many things are described, and how far all of them are looked into.
_MAX_BESIDE = 50
_MAX_INSIDE = 1_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of a checkpoint, and what else is in it; the attributes are those of `Contents`."""

    tensors: tuple[TensorEntry, ...]
    beside: dict[str, str]
    note: str | None
    inside: tuple[str, ...]


def lay_out(content: Any, is_tensor: IsTensor, to_entry: ToEntry, key: str | None, source: str) -> Layout:
    """Find the tensors in a checkpoint: those under `key`, or of the state dict in it, or whatever there are.

    Raises:
        ValueError: a tensor that contradicts itself, or the file.
        UsageError: nothing goes by this key, or it holds no tensors (exit 2).
    """
    names = Names()
    content = _with_states(content, names)
    taken = find_state(content, is_tensor, key, source)
    named, note, beside = taken.named, taken.note(), [pair for pair in taken.beside if not is_tensor(pair[1])]
    if not named:  # no state dict
        named, note = all_tensors(taken.content, is_tensor, names), None
    tensors = tuple(to_entry(name, value) for name, value in named.items())
    limit = _MAX_INSIDE // max(1, len(beside))
    words = {
        plain(name)[:_MAX_TEXT]: describe(value, is_tensor, limit) for name, value in beside[:_MAX_BESIDE]
    }
    if len(beside) > _MAX_BESIDE:
        words["..."] = f"{len(beside) - _MAX_BESIDE:,} more"
    return Layout(tensors, words, note, _inside(taken.content, taken.named, is_tensor))


def under(contents: Contents, key: str | None) -> Contents:
    """Return what a checkpoint without nesting holds under a key: the tensors whose names begin with it.

    Raises:
        UsageError: nothing goes by this key (exit 2).
    """
    if key is None:
        return contents
    flat = {tensor.name: tensor for tensor in contents.tensors}
    found = lay_out(flat, _is_entry, lambda name, entry: replace(entry, name=name), key, str(contents.path))
    return replace(contents, tensors=found.tensors, note=found.note)


def _is_entry(value: Any) -> bool:
    return isinstance(value, TensorEntry)


def describe(value: Any, is_tensor: IsTensor, limit: int = _MAX_INSIDE) -> str:
    """Say in a few words what a value is: itself where it is short, else what is in it."""
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…")
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large number"
    if isinstance(value, int | float) or value is None:
        return str(value)
    if isinstance(value, Global):
        return plain(value.name)[:_MAX_TEXT]
    inside = itertools.islice(walk(value, is_tensor), limit)
    n = Counter(
        "tensors" if is_tensor(item) else "numbers" for _, item in inside if not isinstance(item, str)
    )
    kind = plain(value.name)[:_MAX_TEXT] if isinstance(value, Opaque) else ""
    counts = [
        f"{n[what]:,} {what if n[what] > 1 else what[:-1]}" for what in ("tensors", "numbers") if n[what]
    ]
    return ", ".join(filter(None, [kind, *counts])) or with_article(type(value).__name__)


def _inside(content: Any, named: dict[str, Any], is_tensor: IsTensor) -> tuple[str, ...]:
    """Return what a state dict names that is not a tensor, but holds some."""
    if not named or not isinstance(content, dict):
        return ()
    others = {key: value for key, value in content.items() if key not in named}
    keys = dict.fromkeys(first_key(path) for path, value in walk(others, is_tensor) if is_tensor(value))
    return tuple(plain(str(key)) for key in keys)


def _with_states(content: Any, names: Names) -> Any:
    """Put what pickled modules and dicts of other classes hold in their place: the content, or what is in it."""
    content = _attributes(_plain(content, names))
    if not isinstance(content, dict):
        return content
    replaced: dict[int, Any] = {}
    for value in content.values():
        if isinstance(value, Opaque) and id(value) not in replaced:
            replaced[id(value)] = _plain(value, names)
    return {key: replaced.get(id(value), value) for key, value in content.items()} if replaced else content


def _plain(value: Any, names: Names) -> Any:
    value = state_of_module(value, names)
    return value.items if isinstance(value, Opaque) and value.items else value


def _attributes(value: Any) -> Any:
    """What an object of another class, a whole trainer perhaps, keeps under names."""
    has_names = isinstance(value, Opaque) and isinstance(value.state, dict) and bool(value.state)
    return value.state if has_names else value
