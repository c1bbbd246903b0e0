"""Go through nested containers, as a checkpoint holds them, without recursion. Standard library."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from modelscope_cli.checkpoints.entries import Names
from modelscope_cli.checkpoints.pickle_machine import Opaque

IsTensor = Callable[[Any], bool]
# The way to something: the way to what holds it, and its key there. To write each out would take much memory.
Path = tuple["Path", Any] | None

_MAX_DEPTH = 100


def walk(value: Any, is_tensor: IsTensor) -> Iterator[tuple[Path, Any]]:
    """Go through all that is not a container, each container once, with the path to it."""
    seen: set[int] = set()
    waiting: list[tuple[Path, int, Any]] = [(None, 0, value)]
    while waiting:
        path, depth, value = waiting.pop()
        if is_tensor(value) or not isinstance(value, dict | list | tuple | Opaque):
            yield path, value
        elif id(value) not in seen and depth <= _MAX_DEPTH:
            seen.add(id(value))
            waiting += reversed([((path, key), depth + 1, item) for key, item in _items(value)])


def all_tensors(content: Any, is_tensor: IsTensor, names: Names) -> dict[str, Any]:
    """Return every tensor in nested containers, under the keys that lead to it with dots between them."""
    found: dict[str, Any] = {}
    for path, value in walk(content, is_tensor):
        if is_tensor(value):
            name = _name(path, names)
            while name in found:  # of 1 and "1"
                name = names.join(name, "_")
            found[name] = value
    return found


def first_key(path: Path) -> Any:
    """Return the key that a path begins with."""
    key = None
    while path is not None:
        path, key = path
    return key


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Opaque):
        return itertools.chain(_pairs(value.args), _pairs(value.state), value.items.items())
    return _pairs(value)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _name(path: Path, names: Names) -> str:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key))
    return names.join(*itertools.chain.from_iterable((".", key) for key in reversed(keys)))[1:] or "tensor"
