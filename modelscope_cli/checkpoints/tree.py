"""From what a pickle describes to named tensors, and a word on everything beside them. Standard library."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from modelscope_cli.checkpoints.entries import Storage, TensorEntry, printable
from modelscope_cli.checkpoints.machine import Global, Opaque
from modelscope_cli.checkpoints.rebuild import StorageRef, TensorRef, state_of_module
from modelscope_cli.checkpoints.unwrap import find_state, tensors_in, took

Locate = Callable[[StorageRef], Storage]

_MAX_DEPTH = 32
_MAX_TEXT = 60


def lay_out(content: Any, locate: Locate) -> tuple[tuple[TensorEntry, ...], dict[str, str], str | None]:
    """Return the tensors, what stands beside them, and where the state dict stood.

    Raises:
        ValueError: a tensor whose storage is not there or too small.
    """
    content = _with_states(content)
    path, holder, beside = find_state(content, _is_tensor)
    named = tensors_in(holder, _is_tensor)
    if not named:  # no state dict: whatever tensors there are
        named = {name or "tensor": value for name, value in _walk(content) if _is_tensor(value)}
        path = []
    located: dict[StorageRef, Storage] = {}
    tensors = []
    for name, ref in named.items():
        storage = None
        if ref.storage is not None:
            storage = located.get(ref.storage) or locate(ref.storage)
            located[ref.storage] = storage
        tensors.append(
            TensorEntry(name, ref.shape, ref.dtype, storage, ref.offset, ref.stride, (), ref.is_quantized)
        )
    words = {printable(name): describe(value) for name, value in beside if not _is_tensor(value)}
    return tuple(tensors), words, took(path, beside, len(tensors)) if path else None


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
    n = Counter(
        "tensors" if _is_tensor(item) else "numbers" for _, item in _walk(value) if not isinstance(item, str)
    )
    kind = f"a {printable(value.name)[:_MAX_TEXT]}" if isinstance(value, Opaque) else ""
    counts = [
        f"{n[what]:,} {what if n[what] > 1 else what[:-1]}" for what in ("tensors", "numbers") if n[what]
    ]
    return ", ".join(filter(None, [kind, *counts])) or f"an empty {type(value).__name__}"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorRef)


def _with_states(content: Any) -> Any:
    """Put the state dicts of pickled modules in their place: the content itself, or what stands in it."""
    content = state_of_module(content)
    if not isinstance(content, dict):
        return content
    states = {id(value): state_of_module(value) for value in content.values() if isinstance(value, Opaque)}
    return {key: states.get(id(value), value) for key, value in content.items()}


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Go through all that is not a container, once, with the path to it."""
    seen: set[int] = set()
    waiting: list[tuple[str, int, Any]] = [("", 0, value)]
    while waiting:
        path, depth, value = waiting.pop()
        if isinstance(value, Opaque):
            value = {**(value.state if isinstance(value.state, dict) else {}), **value.items}
        elif not isinstance(value, dict | list | tuple):
            yield path, value
            continue
        elif id(value) in seen or depth > _MAX_DEPTH:
            continue
        else:
            seen.add(id(value))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        below = [(_join(path, key), depth + 1, item) for key, item in items]
        waiting += reversed(below)


def _join(path: str, key: Any) -> str:
    name = str(key) if isinstance(key, str | int) else type(key).__name__
    return f"{path}.{name}" if path else name
