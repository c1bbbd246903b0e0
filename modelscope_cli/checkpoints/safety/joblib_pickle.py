"""Pickles of joblib: the values of arrays are between the operations. Standard library.

The source: `joblib/numpy_pickle.py`, `NumpyArrayWrapper.read_array` and `NumpyUnpickler.load_build`.
"""

import math
import re
from typing import Any

from modelscope_cli.checkpoints.entries import checked_sizes
from modelscope_cli.checkpoints.pickle_machine import Global, Machine, Opaque
from modelscope_cli.checkpoints.safety.rank import rank
from modelscope_cli.checkpoints.watch import Blind, Watch
from modelscope_cli.records.weights import DANGEROUS

_WRAPPER = "joblib.numpy_pickle.NumpyArrayWrapper"
_HAS_OBJECT = 1  # numpy: NPY_ITEM_HASOBJECT
_BYTES = {"U": 4, "S": 1, "V": 1}
_N_STATE = (8, 9)  # of a dtype, since NumPy 1.4


class _Plainly(Blind):
    """Passes on the names and calls that `pickle.load` finds in the values of an array, where joblib reads values.

    Not what is there by chance: in a pickle of objects the numbers of its memory mean others to `pickle.load`.
    """

    def __init__(self, watch: Watch, has_objects: bool) -> None:
        self._watch, self._has_objects = watch, has_objects
        self.is_strange = False

    def named(self, found: Global, position: int) -> None:
        is_module = "." in found.module and not found.module.startswith("joblib.")
        if rank(found).rank == DANGEROUS or is_module or not self._has_objects:
            self._watch.named(found, position)

    def called(self, how: str, callee: Any, args: Any, position: int) -> None:
        if isinstance(callee, Global) and (rank(callee).rank == DANGEROUS or not self._has_objects):
            self._watch.called(how, callee, args, position)

    def strange(self, what: str, position: int) -> None:
        self.is_strange = not self._has_objects


class JoblibMachine(Machine):
    """Steps over the values behind each array, or reads the pickle that holds them."""

    def read(self) -> Any:
        """Return the description of the next pickle.

        Raises:
            ValueError: not a pickle, a damaged one, or one that joblib and pickle read differently.
        """
        self._built: list[Opaque] = []
        self._is_strange = False
        content = super().read()
        if self._is_strange:
            raise ValueError("values of an array that are also operations of a pickle")
        return content

    def built(self, target: Any) -> None:
        if not isinstance(target, Opaque) or not _is_of_joblib(target):
            return
        if target.name != _WRAPPER or target in self._built or type(target.state) is not dict:
            raise ValueError("an array of joblib that joblib itself did not write")
        width = _width(target.state.get("dtype"))
        if not self._built:
            self._read_plainly(has_objects=width is None)
        self._built.append(target)
        if width is None:
            self.read_inner()
            return
        if target.state.get("numpy_array_alignment_bytes") is not None:
            self.skip(self.next_byte())
        self.skip(math.prod(checked_sizes(target.state.get("shape"))) * width)

    def _read_plainly(self, *, has_objects: bool) -> None:
        """Go on as `pickle.load` does, for which no values are there; mostly it fails at their first byte."""
        watch = _Plainly(self._watch, has_objects)
        self.read_on(watch)
        self._is_strange = watch.is_strange


def _is_of_joblib(target: Opaque) -> bool:
    made_of = target.args if isinstance(target.args, tuple) else ()
    return target.name.startswith("joblib.") or any(
        isinstance(part, Global) and part.name.startswith("joblib.") for part in made_of
    )


def _width(dtype: Any) -> int | None:
    """Return the bytes of one element; None for objects.

    Raises:
        ValueError: it cannot be known.
    """
    is_dtype = isinstance(dtype, Opaque) and dtype.name == "numpy.dtype" and isinstance(dtype.args, tuple)
    code = dtype.args[0] if is_dtype and dtype.args else None
    match = re.fullmatch(r"([a-zA-Z])([0-9]{1,9})", code) if isinstance(code, str) else None
    state = dtype.state if is_dtype else None
    if match is None or not isinstance(state, tuple) or len(state) not in _N_STATE:
        raise ValueError("an array of a dtype that cannot be determined")
    width = int(match[2]) * _BYTES.get(match[1], 1)
    # NumPy takes the flags and, of texts and fields, the size from the state, whatever the code says.
    *_, nbytes, _, flags = state[:8]
    if type(flags) is not int or (match[1] in _BYTES and nbytes != width):
        raise ValueError("an array of a dtype that contradicts itself")
    return None if match[1] == "O" or flags & _HAS_OBJECT else width
