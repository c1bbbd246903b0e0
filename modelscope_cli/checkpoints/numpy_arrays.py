"""The headers of .npy files, as far as they tell whether a pickle follows.

The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

import functools
import io
import tokenize
import warnings
from typing import IO

from modelscope_cli.checkpoints.entries import UnsupportedError

MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 20


def npy_start(file: IO[bytes]) -> tuple[int, int]:
    """Return the offsets of the header and of the values in an .npy file."""
    head = file.read(12)
    if head[:6] != MAGIC or len(head) < 12:
        raise ValueError("an entry that is not a NumPy array")
    if head[6:8] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise UnsupportedError(f"a NumPy array of version {head[6]}.{head[7]}")
    begin = 10 if head[6] == 1 else 12
    return begin, begin + int.from_bytes(head[8:begin], "little")


def has_objects(file: IO[bytes]) -> bool:
    """Tell whether the values of an .npy file follow as a pickle, as NumPy reads its header."""
    at = file.tell()
    begin, end = npy_start(file)
    if end - begin > _MAX_HEADER:
        raise UnsupportedError(f"a NumPy array with a header of {end - begin} bytes")
    file.seek(at)
    return _has_objects(file.read(end))


@functools.lru_cache(32)  # the arrays of an archive usually have few headers
def _has_objects(head: bytes) -> bool:
    from numpy.lib import format as npy

    file = io.BytesIO(head)
    read = npy.read_array_header_1_0 if npy.read_magic(file)[0] == 1 else npy.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings, and headers of Python 2
            _, _, dtype = read(file, max_header_size=_MAX_HEADER)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError("a NumPy array without a readable header") from error
    return bool(dtype.hasobject)
