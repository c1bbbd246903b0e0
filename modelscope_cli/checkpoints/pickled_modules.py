"""The state dict of a module that was pickled as a whole. Standard library."""

from typing import Any

from modelscope_cli.checkpoints.entries import Names
from modelscope_cli.checkpoints.pickle_machine import Opaque

# What quantized modules keep their weights in.
_PACKED = "torch.ScriptObject"


def state_of_module(value: Any, names: Names) -> Any:
    """Return the state dict of a pickled `nn.Module`, or what it is where it is not one.

    What a module of it has packed up in a way of its own is in it, too, as it is.

    Raises:
        UnsupportedError: it goes on without end.
    """
    if not isinstance(value, Opaque) or not isinstance(value.state, dict) or "_modules" not in value.state:
        return value
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:  # a module that is there twice has its tensors under both names
        prefix, module = waiting.pop()
        if not isinstance(module, Opaque):
            continue
        if not isinstance(module.state, dict):
            found[prefix[:-1]] = module
            continue
        state = module.state
        inner = _dict(state, "_modules")
        for key, item in (*_dict(state, "_parameters").items(), *_kept(state).items()):
            if item is not None:
                found[names.join(prefix, str(key))] = item
        for key, item in state.items():
            if isinstance(item, Opaque) and item.name == _PACKED:
                found[names.join(prefix, str(key))] = item
        waiting += [(names.join(prefix, str(key), "."), item) for key, item in reversed(inner.items())]
    return found


def _dict(state: dict[Any, Any], key: str) -> dict[Any, Any]:
    value = state.get(key)
    return value if isinstance(value, dict) else {}


def _kept(state: dict[Any, Any]) -> dict[Any, Any]:
    """The buffers that a state dict has: all but those that are not persistent."""
    buffers, passing = _dict(state, "_buffers"), state.get("_non_persistent_buffers_set")
    if not isinstance(passing, list) or len(passing) > len(buffers):
        return buffers
    left_out = {key for key in passing if isinstance(key, str)}
    return {key: item for key, item in buffers.items() if key not in left_out}
