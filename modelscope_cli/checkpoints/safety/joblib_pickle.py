"""Pickles of joblib: the values of arrays stand between the operations. Standard library.

The source: `joblib/numpy_pickle.py`, `NumpyArrayWrapper.read_array` and `NumpyUnpickler.load_build`.
"""

import math
import re
from typing import Any

from modelscope_cli.checkpoints.entries import checked_sizes
from modelscope_cli.checkpoints.pickle_machine import Machine, Opaque

_WRAPPER = "joblib.numpy_pickle.NumpyArrayWrapper"
_HAS_OBJECT = 1  # numpy: NPY_ITEM_HASOBJECT
_BYTES = {"U": 4, "S": 1, "V": 1}


class JoblibMachine(Machine):
    """Steps over the values behind each array, or reads the pickle that holds them."""

    def built(self, target: Any) -> None:
        if not isinstance(target, Opaque) or target.name != _WRAPPER or not isinstance(target.state, dict):
            return
        width = _width(target.state.get("dtype"))
        if width is None:
            self.read_inner()
            return
        if target.state.get("numpy_array_alignment_bytes") is not None:
            self.skip(self.next_byte())
        self.skip(math.prod(checked_sizes(target.state.get("shape"))) * width)


def _width(dtype: Any) -> int | None:
    """Return the bytes of one element; None for objects.

    Raises:
        ValueError: it cannot be known.
    """
    code = (
        dtype.args[0] if isinstance(dtype, Opaque) and isinstance(dtype.args, tuple) and dtype.args else None
    )
    match = re.fullmatch(r"([a-zA-Z])(\d{1,9})", code) if isinstance(code, str) else None
    if match is None:
        raise ValueError("an array of a dtype that cannot be determined")
    has_fields = isinstance(dtype.state, tuple) and len(dtype.state) > 4 and dtype.state[4]
    if match[1] == "O" or (has_fields and len(dtype.state) > 7 and dtype.state[7] & _HAS_OBJECT):
        return None
    return int(match[2]) * _BYTES.get(match[1], 1)
