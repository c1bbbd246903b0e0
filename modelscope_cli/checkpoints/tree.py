"""From what a pickle describes to named tensors, and a word on everything beside them. Standard library."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from modelscope_cli.checkpoints.entries import Storage, TensorEntry, checked_name, printable
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque
from modelscope_cli.checkpoints.torch_reducers import StorageRef, TensorRef, state_of_module
from modelscope_cli.checkpoints.unwrap import find_state, tensors_in, took

Locate = Callable[[StorageRef], Storage]
# The way to something: the way to what holds it, and its key there. To write each out would take much memory.
Path = tuple["Path", Any] | None

_MAX_DEPTH = 32
_MAX_TEXT = 60
_MAX_STEPS = 200_000
_MAX_MODULES = 8
# Of what stands beside the tensors: how many things are described, and how far each is looked into.
_MAX_BESIDE = 50
_MAX_INSIDE = 20_000


def lay_out(content: Any, locate: Locate) -> tuple[tuple[TensorEntry, ...], dict[str, str], str | None]:
    """Return the tensors, what stands beside them, and where the state dict stood.

    Raises:
        ValueError: a tensor whose storage is not there or too small, or whose name is too long.
    """
    content = _with_states(content)
    taken, holder, beside = find_state(content, _is_tensor)
    named = tensors_in(holder, _is_tensor)
    if not named:  # no state dict: whatever tensors there are
        named = {_name(path): value for path, value in _walk(content, _MAX_STEPS) if _is_tensor(value)}
        taken = []
    located: dict[StorageRef, Storage] = {}
    tensors = []
    for name, ref in named.items():
        storage = None
        if ref.storage is not None:
            storage = located.get(ref.storage) or locate(ref.storage)
            located[ref.storage] = storage
        tensors.append(
            TensorEntry(
                checked_name(name),
                ref.shape,
                ref.dtype,
                storage,
                ref.offset,
                ref.stride,
                (),
                ref.is_quantized,
            )
        )
    others = [(name, value) for name, value in beside if not _is_tensor(value)]
    words = {printable(name)[:_MAX_TEXT]: describe(value) for name, value in others[:_MAX_BESIDE]}
    if len(others) > _MAX_BESIDE:
        words["..."] = f"{len(others) - _MAX_BESIDE:,} more"
    return tuple(tensors), words, took(taken, beside, len(tensors)) if taken else None


def describe(value: Any) -> str:
    """Say in a few words what a value is: itself where it is short, else what is in it."""
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…")
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large number"
    if isinstance(value, int | float) or value is None:
        return str(value)
    if isinstance(value, Global):
        return printable(value.name)[:_MAX_TEXT]
    inside = [item for _, item in _walk(value, _MAX_INSIDE) if not isinstance(item, str)]
    n = Counter("tensors" if _is_tensor(item) else "numbers" for item in inside)
    kind = printable(value.name)[:_MAX_TEXT] if isinstance(value, Opaque) else ""
    counts = [
        f"{n[what]:,} {what if n[what] > 1 else what[:-1]}" for what in ("tensors", "numbers") if n[what]
    ]
    return ", ".join(filter(None, [kind, *counts])) or f"a {type(value).__name__}"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorRef)


def _with_states(content: Any) -> Any:
    """Put the state dicts of pickled modules in their place: the content itself, or what stands in it."""
    content = state_of_module(content)
    if not isinstance(content, dict):
        return content
    modules = {id(value): value for value in content.values() if isinstance(value, Opaque)}
    states = {at: state_of_module(modules[at]) for at in list(modules)[:_MAX_MODULES]}
    return {key: states.get(id(value), value) for key, value in content.items()}


def _walk(value: Any, limit: int) -> Iterator[tuple[Path, Any]]:
    """Go through all that is not a container, each container once, with the path to it; `limit` steps at most."""
    seen: set[int] = set()
    waiting: list[tuple[Path, int, Any]] = [(None, 0, value)]
    while waiting and limit > 0:
        limit -= 1
        path, depth, value = waiting.pop()
        if not isinstance(value, dict | list | tuple | Opaque):
            yield path, value
        elif id(value) not in seen and depth <= _MAX_DEPTH:
            seen.add(id(value))
            below = itertools.islice(_items(value), limit)
            waiting += reversed([((path, key), depth + 1, item) for key, item in below])


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Opaque):
        state = value.state if isinstance(value.state, dict) else {}
        return itertools.chain(state.items(), value.items.items())
    return value.items() if isinstance(value, dict) else enumerate(value)


def _name(path: Path) -> str:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key))
    return checked_name(".".join(reversed(keys))) or "tensor"
