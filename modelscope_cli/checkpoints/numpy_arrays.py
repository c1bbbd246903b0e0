"""NumPy arrays as described by pickles and by .npy headers.

The formats: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, and
https://numpy.org/doc/stable/reference/generated/numpy.ndarray.__setstate__.html
"""

import functools
import io
import math
import struct
import tokenize
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from modelscope_cli.checkpoints.entries import BITS, Shape, UnsupportedError, checked_shape
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque

# By kind and bytes, as NumPy writes them.
_DTYPES = {
    **{"b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "c8": "complex64"},
    **{"u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64", "c16": "complex128"},
    **{"f2": "float16", "f4": "float32", "f8": "float64"},
}
_STRUCT = {
    **{"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"},
    **{"f2": "e", "f4": "f", "f8": "d"},
}
MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 20
_BUILT = "numpy.ndarray"


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Description of an array."""

    shape: Shape
    dtype: str | None  # torch's name; None for values other than numbers
    kind: str  # NumPy's name of the dtype
    stride: Shape | None  # None if contiguous
    is_big_endian: bool  # whether its byte order is big-endian
    has_objects: bool = False  # whether its values follow as a pickle


@dataclass(eq=False, repr=False, slots=True)
class PickledArray(Opaque):
    """An array described by a pickle; `state` is the argument of `ndarray.__setstate__`."""

    def info(self) -> ArrayInfo | None:
        """Return its description; None if its state is invalid."""
        match self.state:
            case (*_, tuple(shape), Opaque(name="numpy.dtype") as dtype, bool(is_fortran), data):
                kind, order = _kind_of(dtype)
                info = _info(checked_shape(shape), kind, order, is_fortran=is_fortran)
                if info.dtype and len(bytes_of(data)) * 8 != math.prod(info.shape) * BITS[info.dtype]:
                    raise ValueError(f"{len(bytes_of(data))} bytes for an array of shape {list(info.shape)}")
                return info
        return None

    @property
    def data(self) -> bytes | bytearray | str:
        return bytes_of(self.state[-1])


def bytes_of(value: Any) -> bytes | bytearray | str:
    """Return the bytes in a pickle of any protocol: old ones store them as text, one character per byte."""
    if isinstance(value, Opaque) and value.name == "_codecs.encode" and isinstance(value.args, tuple):
        value = value.args[0] if value.args[1:] == ("latin1",) else None
    if isinstance(value, Opaque) and value.name in ("builtins.bytes", "__builtin__.bytes"):
        value = b"" if value.args == () else value.args
    if not isinstance(value, bytes | bytearray | str) or (isinstance(value, str) and not _is_latin(value)):
        raise ValueError("an array without bytes")
    return value


def _is_latin(text: str) -> bool:
    return text.isascii() or max(text) < "\u0100"


def _empty(*_: Any) -> PickledArray:
    return PickledArray(_BUILT)


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> PickledArray:
    return PickledArray(_BUILT, state=(shape, dtype, order == "F", data))


def _scalar(dtype: Any, data: Any = b"") -> Any:
    """Return the number, or None for other types."""
    kind, order = _kind_of(dtype) if isinstance(dtype, Opaque) else ("", "")
    if kind not in _STRUCT:
        return None
    raw = bytes_of(data)
    raw = raw.encode("latin-1") if isinstance(raw, str) else bytes(raw)
    form = (">" if order == ">" else "<") + _STRUCT[kind]
    return struct.unpack(form, raw)[0] if len(raw) == struct.calcsize(form) else None


ARRAY_CALLS: dict[str, Callable[..., Any]] = {
    f"{module}.{name}": call
    for module in ("numpy.core", "numpy._core")
    for name, call in {
        "multiarray._reconstruct": _empty,
        "multiarray.scalar": _scalar,
        "numeric._frombuffer": _from_buffer,
    }.items()
}


def _kind_of(dtype: Opaque) -> tuple[str, str]:
    """Return the kind and byte order of a pickled `numpy.dtype`."""
    kind = dtype.args[0] if isinstance(dtype.args, tuple) and dtype.args else None
    order = dtype.state[1] if isinstance(dtype.state, tuple) and len(dtype.state) > 1 else "|"
    if isinstance(kind, Global):  # a class such as numpy.dtypes.Float64DType
        kind = kind.name
    return str(kind), str(order)


def _info(shape: Shape, kind: str, order: str, *, is_fortran: bool, has_objects: bool = False) -> ArrayInfo:
    stride = tuple(math.prod(shape[:at]) for at in range(len(shape))) if is_fortran else None
    dtype = _DTYPES.get(kind)
    is_big_endian = order == ">" and dtype is not None and BITS[dtype] > 8
    return ArrayInfo(shape, dtype, kind, stride, is_big_endian, has_objects)


def npy_start(file: IO[bytes]) -> tuple[int, int]:
    """Return the offsets of the header and of the values in an .npy file."""
    head = file.read(12)
    if head[:6] != MAGIC or len(head) < 12:
        raise ValueError("an entry that is not a NumPy array")
    if head[6:8] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise UnsupportedError(f"a NumPy array of version {head[6]}.{head[7]}")
    begin = 10 if head[6] == 1 else 12
    return begin, begin + int.from_bytes(head[8:begin], "little")


def read_npy_header(file: IO[bytes]) -> tuple[ArrayInfo, int]:
    """Return the description of an .npy file as NumPy reads it, and the offset of its values."""
    at = file.tell()
    begin, end = npy_start(file)
    if end - begin > _MAX_HEADER:
        raise UnsupportedError(f"a NumPy array with a header of {end - begin} bytes")
    file.seek(at)
    return _info_of(file.read(end)), end


@functools.lru_cache(32)  # the arrays of an archive usually have few headers
def _info_of(head: bytes) -> ArrayInfo:
    from numpy.lib import format as npy

    file = io.BytesIO(head)
    read = npy.read_array_header_1_0 if npy.read_magic(file)[0] == 1 else npy.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings, and headers of Python 2
            shape, is_fortran, dtype = read(file, max_header_size=_MAX_HEADER)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError("a NumPy array without a readable header") from error
    order, kind = dtype.str[0], dtype.str[1:]
    return _info(checked_shape(shape), kind, order, is_fortran=is_fortran, has_objects=dtype.hasobject)
