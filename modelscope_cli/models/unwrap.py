"""Take the state dict out of what training scripts save around it."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Where a state dict usually stands, the likeliest first.
_WRAPPERS = ("state_dict", "model", "model_state_dict", "ema", "module")
_MAX_DEPTH = 4


def unwrap_state(content: Any) -> tuple[dict[str, Tensor], str | None]:
    """Return the named tensors inside `content`, and a note on where they stood and what stood beside.

    The dict is empty where there are none. It keeps the `_metadata` (module versions) that torch saves along.
    """
    path: list[str] = []
    beside: list[str] = []
    while len(path) < _MAX_DEPTH and (key := _wrapper_of(content)) is not None:
        beside += [str(other) for other in content if other != key]
        path.append(key)
        content = content[key]
    state = OrderedDict(_tensors(content))  # not a dict: an OrderedDict can carry `_metadata`
    if hasattr(content, "_metadata"):
        vars(state)["_metadata"] = content._metadata
    if isinstance(content, Mapping):
        beside += [str(key) for key in content if key not in state]
    if not path and not beside:
        return state, None
    note = f"took '{'.'.join(path)}'" if path else f"took {len(state)} tensors"
    return state, note + (f", left {', '.join(beside[:8])}{' ...' * (len(beside) > 8)}" if beside else "")


def _wrapper_of(content: Any) -> str | None:
    """Return the key under which the tensors are, or None where `content` holds them itself."""
    if not isinstance(content, Mapping):
        return None
    for key in _WRAPPERS:
        if _holds_tensors(content.get(key)):
            return key
    if _tensors(content):
        return None
    return next((key for key, inner in content.items() if isinstance(key, str) and _tensors(inner)), None)


def _holds_tensors(content: Any, depth: int = 0) -> bool:
    if not isinstance(content, Mapping) or depth > _MAX_DEPTH:
        return False
    return bool(_tensors(content)) or any(_holds_tensors(content.get(key), depth + 1) for key in _WRAPPERS)


def _tensors(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        return {}
    return {
        key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)
    }
