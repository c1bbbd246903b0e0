"""Take the state dict out of what training scripts save around it."""

from collections import OrderedDict
from typing import Any

from torch import Tensor

from modelscope_cli.checkpoints.unwrap import find_state, tensors_in, took


def unwrap_state(content: Any) -> tuple[dict[str, Tensor], str | None]:
    """Return the named tensors inside `content`, and a note on where they stood and what stood beside.

    The dict is empty where there are none. It keeps the `_metadata` (module versions) that torch saves along.
    """
    path, content, beside = find_state(content, _is_tensor)
    state = OrderedDict(tensors_in(content, _is_tensor))  # not a dict: an OrderedDict can carry `_metadata`
    if hasattr(content, "_metadata"):
        vars(state)["_metadata"] = content._metadata
    return state, took(path, beside, len(state))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
