"""Take the state dict out of what training scripts save around it."""

from collections import OrderedDict
from typing import Any

from torch import Tensor

from modelscope_cli.checkpoints.tree import find_state


def unwrap_state(
    content: Any, key: str | None = None, source: str = ""
) -> tuple[dict[str, Tensor], str | None]:
    """Return the named tensors inside `content`, and a note on where they stood and what stood beside.

    The dict is empty where there are none. It keeps the `_metadata` (module versions) that torch saves along.

    Raises:
        UsageError: nothing goes by this key, or it holds no tensors (exit 2).
    """
    taken = find_state(content, _is_tensor, key, source)
    state = OrderedDict(taken.named)  # not a dict: an OrderedDict can carry `_metadata`
    if hasattr(taken.content, "_metadata"):
        vars(state)["_metadata"] = taken.content._metadata
    return state, taken.note()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
