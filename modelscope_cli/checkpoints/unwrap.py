"""Find the state dict in what training scripts save around it. Standard library."""

from collections.abc import Callable, Mapping
from typing import Any

# Where a state dict usually stands, the likeliest first.
_WRAPPERS = ("state_dict", "model", "model_state_dict", "ema", "module")
_MAX_DEPTH = 4

IsTensor = Callable[[Any], bool]


def find_state(content: Any, is_tensor: IsTensor) -> tuple[list[str], Any, list[tuple[str, Any]]]:
    """Return the keys that lead to the named tensors inside `content`, what is there, and what stands beside."""
    path: list[str] = []
    beside: list[tuple[str, Any]] = []
    while len(path) < _MAX_DEPTH and (key := _wrapper_of(content, is_tensor)) is not None:
        beside += [(str(other), value) for other, value in content.items() if other != key]
        path.append(key)
        content = content[key]
    if isinstance(content, Mapping):
        own = tensors_in(content, is_tensor)
        beside += [(str(key), value) for key, value in content.items() if key not in own]
    return path, content, beside


def took(path: list[str], beside: list[tuple[str, Any]], n_tensors: int) -> str | None:
    """Say what was taken out of what; None where the state dict was all there was."""
    if not path and not beside:
        return None
    note = f"took '{'.'.join(path)}'" if path else f"took {n_tensors} tensors"
    left = ", ".join(name for name, _ in beside[:8])
    return note + (f", left {left}{' ...' * (len(beside) > 8)}" if beside else "")


def tensors_in(content: Any, is_tensor: IsTensor) -> dict[str, Any]:
    """Return what `content` names and is a tensor."""
    if not isinstance(content, Mapping):
        return {}
    return {key: value for key, value in content.items() if isinstance(key, str) and is_tensor(value)}


def _wrapper_of(content: Any, is_tensor: IsTensor) -> str | None:
    """Return the key under which the tensors are, or None where `content` holds them itself."""
    if not isinstance(content, Mapping):
        return None
    for key in _WRAPPERS:
        if _holds_tensors(content.get(key), is_tensor):
            return key
    if tensors_in(content, is_tensor):
        return None
    # Each only once: a hostile file may name one large dict under very many keys.
    keys = {id(value): key for key, value in reversed(list(content.items())) if isinstance(key, str)}
    holders = [key for key in keys.values() if tensors_in(content[key], is_tensor)]
    return holders[-1] if holders else None


def _holds_tensors(content: Any, is_tensor: IsTensor, depth: int = 0) -> bool:
    if not isinstance(content, Mapping) or depth > _MAX_DEPTH:
        return False
    return bool(tensors_in(content, is_tensor)) or any(
        _holds_tensors(content.get(key), is_tensor, depth + 1) for key in _WRAPPERS
    )
