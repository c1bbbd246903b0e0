"""Find the state dict in what training scripts save around it. Standard library."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from modelscope_cli.checkpoints.entries import Names
from modelscope_cli.checkpoints.walk import IsTensor, all_tensors
from modelscope_cli.errors import UsageError
from modelscope_cli.plain_text import plain

# Where a state dict usually stands, the likeliest first.
_WRAPPERS = ("state_dict", "model", "model_state_dict", "ema", "module")
_MAX_DEPTH = 4
_N_NAMED = 8
_MAX_SUGGESTED = 3
_MAX_COMPARED = 1000
_MAX_TEXT = 100


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken out of a checkpoint.

    Attributes:
        path: the keys that lead to it; empty where it is the whole content.
        content: what stands there.
        named: the tensors that it names.
        beside: what else the checkpoint holds, by name.
        others: keys that hold named tensors too, as `--key` takes them.
    """

    path: tuple[str, ...]
    content: Any
    named: dict[str, Any]
    beside: tuple[tuple[str, Any], ...]
    others: tuple[str, ...]

    def note(self) -> str | None:
        """Say what was taken out of what; None where it is all there was."""
        if not self.path and not self.beside:
            return None
        n = len(self.named)
        taken = f"took '{_cut('.'.join(self.path))}'" if self.path else f"took {n} tensor{'s' * (n != 1)}"
        left = ", ".join(_cut(name) for name, _ in self.beside[:_N_NAMED])
        text = taken + (f", left {left}{' ...' * (len(self.beside) > _N_NAMED)}" if self.beside else "")
        keys = " or ".join(f"--key {_cut(key)}" for key in self.others[:_MAX_SUGGESTED])
        return f"{text}; take another with {keys}" if keys else text


def find_state(content: Any, is_tensor: IsTensor, key: str | None = None, source: str = "") -> Taken:
    """Return the named tensors inside `content`: those under `key`, or else where they usually stand.

    Args:
        key: names joined by dots, or the beginning of the names of tensors: `model.ema`, `discriminator`.
        source: the file, for the message.

    Raises:
        UsageError: nothing goes by this key, or it holds no tensors (exit 2).
    """
    if key is None:
        return _unwrapped(content, is_tensor, (), _any_wrapper)
    path = next(_paths(content, key), None)
    if path is None:
        return _prefixed(content, is_tensor, key, source)
    target = content
    beside: list[tuple[str, Any]] = []
    for step in path:
        beside += [(str(other), value) for other, value in target.items() if other != step]
        target = target[step]
    inner = _unwrapped(target, is_tensor, tuple(map(str, path)), _known_wrapper)
    others = tuple(other for other in _holders(content, is_tensor) if other != str(path[0]))
    if inner.named:
        return Taken(inner.path, inner.content, inner.named, (*beside, *inner.beside), others)
    named = all_tensors(target, is_tensor, Names())
    if not named:
        raise UsageError(f"'--key {key}' of '{source}' holds no tensors", "leave out --key")
    return Taken(tuple(map(str, path)), named, named, tuple(beside), others)


def tensors_in(content: Any, is_tensor: IsTensor) -> dict[str, Any]:
    """Return what `content` names and is a tensor."""
    if not isinstance(content, Mapping):
        return {}
    return {key: value for key, value in content.items() if isinstance(key, str) and is_tensor(value)}


def no_such_key(key: str, known: list[str], source: str) -> UsageError:
    """Return the error for a key that is not there; it lists those that are, the nearest first."""
    known = list(dict.fromkeys(known))[:_MAX_COMPARED]
    known.sort(key=lambda name: -difflib.SequenceMatcher(None, key, name[:_MAX_TEXT]).ratio())
    names = ", ".join(map(_cut, known[:_N_NAMED]))
    more = f" and {len(known) - _N_NAMED:,} more" if len(known) > _N_NAMED else ""
    message = f"'--key {key}' is not in '{source}'" + (f", which holds {names}{more}" if known else "")
    return UsageError(message, f"--key {_cut(known[0])}" if known else "leave out --key")


def _unwrapped(
    content: Any,
    is_tensor: IsTensor,
    path: tuple[str, ...],
    find_wrapper: Callable[[Any, IsTensor], str | None],
) -> Taken:
    beside: list[tuple[str, Any]] = []
    others: list[str] = []
    depth = len(path) + _MAX_DEPTH
    while len(path) < depth and (key := find_wrapper(content, is_tensor)) is not None:
        beside += [(str(other), value) for other, value in content.items() if other != key]
        others += [".".join((*path, other)) for other in _holders(content, is_tensor) if other != key]
        path = (*path, key)
        content = content[key]
    named = tensors_in(content, is_tensor)
    if isinstance(content, Mapping):
        beside += [(str(key), value) for key, value in content.items() if key not in named]
        others += [".".join((*path, other)) for other in _holders(content, is_tensor)]
    return Taken(path, content, named, tuple(beside), tuple(others))


def _cut(name: str) -> str:
    return plain(name[:_MAX_TEXT])


def _paths(content: Any, key: str) -> Iterator[tuple[Any, ...]]:
    """Yield the keys, one inside the other, that spell `key` with dots between them."""
    if not isinstance(content, Mapping):
        return
    for name, value in content.items():
        word = str(name) if isinstance(name, str | int) else None
        if word == key:
            yield (name,)
        elif word is not None and key.startswith(f"{word}."):
            yield from ((name, *rest) for rest in _paths(value, key[len(word) + 1 :]))


def _prefixed(content: Any, is_tensor: IsTensor, key: str, source: str) -> Taken:
    """Take the tensors whose names begin with `key` and a dot, out of the state dict there is."""
    found = _unwrapped(content, is_tensor, (), _any_wrapper)
    begin = key.removeprefix(".".join((*found.path, ""))) + "."
    named = {name[len(begin) :]: value for name, value in found.named.items() if name.startswith(begin)}
    words = list(dict.fromkeys(name.partition(".")[0] for name in found.named))
    if not named:
        keys = [str(name) for name in content] if isinstance(content, Mapping) else []
        raise no_such_key(key, [*found.path[:1], *found.others, *keys, *words], source)
    left = [(f"{word}.*", None) for word in words if word != begin.partition(".")[0]]
    path = (*found.path, begin[:-1])
    return Taken(path, named, named, (*left, *found.beside), found.others)


def _holders(content: Mapping[Any, Any], is_tensor: IsTensor) -> list[str]:
    """Return the keys under which named tensors stand, at once or where they usually do."""
    # Each only once: a hostile file may name one large dict under very many keys.
    keys = {id(value): key for key, value in reversed(list(content.items())) if isinstance(key, str)}
    return [key for key in reversed(list(keys.values())) if _holds_tensors(content[key], is_tensor)]


def _known_wrapper(content: Any, is_tensor: IsTensor) -> str | None:
    """Return the key under which a state dict usually stands, and does; None where there is none."""
    if not isinstance(content, Mapping):
        return None
    return next((key for key in _WRAPPERS if _holds_tensors(content.get(key), is_tensor)), None)


def _any_wrapper(content: Any, is_tensor: IsTensor) -> str | None:
    """Return the key under which the tensors are, or None where `content` holds them itself."""
    known = _known_wrapper(content, is_tensor)
    if known is not None or not isinstance(content, Mapping) or tensors_in(content, is_tensor):
        return known
    holders = _holders(content, is_tensor)
    return next((key for key in holders if tensors_in(content[key], is_tensor)), None)


def _holds_tensors(content: Any, is_tensor: IsTensor, depth: int = 0) -> bool:
    if not isinstance(content, Mapping) or depth > _MAX_DEPTH:
        return False
    return any(isinstance(key, str) and is_tensor(value) for key, value in content.items()) or any(
        _holds_tensors(content.get(key), is_tensor, depth + 1) for key in _WRAPPERS
    )
