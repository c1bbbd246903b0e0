"""The 68 opcodes of pickle protocols 0 to 5, read as by CPython's unpickler. Standard library.

`pickletools` raises where CPython continues (`I0x10`, names in UTF-8), which would hide everything after that.
Source: `Modules/_pickle.c` of CPython, the functions `load_*`.
"""

import pickle
import re
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from modelscope_cli.checkpoints.entries import UnsupportedError

MAX_BYTES = 32 << 20
# Longer arguments are skipped and described, to save memory; no writer puts a name there.
MAX_ARGUMENT = 1 << 20
_MAX_DIGITS = 1 << 16
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {**{b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}, b"f": b"\f", b"v": b"\v"}


@dataclass(frozen=True, slots=True)
class Blob:
    """A long bytes or text argument in a pickle: its offset in the file and its length."""

    start: int
    nbytes: int
    is_text: bool = False


class OpcodeReader:
    """Reads one opcode after the other. `start`: offset of the last one read; `position`: of the next one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.position = self.start = file.tell()
        self._end = file.seek(0, 2)
        file.seek(self.position)
        self.n_read = 0  # without blobs
        self.is_framed_badly = False  # whether the last opcode, or its frame, crosses the end of a frame
        self._frame_end = 0

    def read(self) -> tuple[int, Any]:
        """Return the next opcode and its argument, None without one."""
        self.start = start = self.position
        code = self._file.read(1)
        if not code:
            raise ValueError("a truncated pickle")
        self.position += 1
        self.n_read += 1
        reader = _READERS.get(code[0])
        argument = reader(self) if reader is not None else None
        if reader is None and code not in _PLAIN:
            raise ValueError(f"an unknown pickle operation, {code[0]:#04x}, at byte {start}")
        if self._frame_end:
            self._check_frame(code, argument)
        elif code == pickle.FRAME:
            self._frame_end = self.position + int(argument or 0)
        return code[0], argument

    def skip(self, n: int) -> None:
        """Skip bytes that are not opcodes; raise ValueError at the end of the file."""
        if self.position + n > self._end:
            raise ValueError("a truncated pickle")
        self._file.seek(n, 1)
        self.position += n

    def take(self, n: int) -> bytes:
        self._count(n)
        data = self._file.read(n)
        if len(data) < n:
            raise ValueError("a truncated pickle")
        self.position += n
        return data

    def line(self) -> bytes:
        """Return the text up to the next line break."""
        data = self._file.readline(MAX_BYTES - self.n_read + 1)
        self._count(len(data))
        self.position += len(data)
        if not data:
            raise ValueError("a truncated pickle")
        return data[:-1]

    def counted(self, width: int, is_text: bool = False) -> bytes | Blob:
        """Return bytes preceded by their count in `width` bytes."""
        n = int.from_bytes(self.take(width), "little")
        if n <= MAX_ARGUMENT:
            return self.take(n)
        start = self.position
        self.skip(n)
        return Blob(start, n, is_text)

    def _count(self, n: int) -> None:
        self.n_read += n
        if self.n_read > MAX_BYTES:
            raise UnsupportedError(f"a pickle of more than {MAX_BYTES >> 20} MiB without its values")

    def _check_frame(self, code: bytes, argument: Any) -> None:
        """Note whether an opcode crosses the end of its frame, which unpicklers read differently."""
        if self.start >= self._frame_end:
            self._frame_end = self.position + argument if code == pickle.FRAME else 0
        elif self.position > self._frame_end or code == pickle.FRAME:
            self.is_framed_badly = True
            self._frame_end = self.position + argument if code == pickle.FRAME else 0


def _unpacked(form: str) -> Callable[[OpcodeReader], Any]:
    packed = struct.Struct(form)
    return lambda decoder: packed.unpack(decoder.take(packed.size))[0]


def _long(width: int) -> Callable[[OpcodeReader], int]:
    def read(decoder: OpcodeReader) -> int:
        data = decoder.counted(width)
        if isinstance(data, Blob):
            raise ValueError(f"a number of {data.nbytes} bytes")
        return int.from_bytes(data, "little", signed=True)

    return read


def _bytes(width: int) -> Callable[[OpcodeReader], Any]:
    return lambda decoder: decoder.counted(width)


def _text(width: int, decode: Callable[[bytes], str]) -> Callable[[OpcodeReader], Any]:
    def read(decoder: OpcodeReader) -> Any:
        data = decoder.counted(width, is_text=True)
        return data if isinstance(data, Blob) else decode(data)

    return read


def _unicode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _as_text(data: bytes) -> str:
    """Return a string of Python 2, which torch decodes as UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _quoted(decoder: OpcodeReader) -> str:
    line = decoder.line().rstrip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a text without quotes")
    return _as_text(_ESCAPE.sub(_unescape, line[1:-1]))


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1] is not None:
        return bytes([int(match[1], 16)])
    if match[2] is not None:
        return bytes([int(match[2], 8) & 255])
    if match[3] in b"\\'\"":
        return match[3]
    return b"" if match[3] == b"\n" else _ESCAPED.get(match[3], match[0])


def _number(decoder: OpcodeReader) -> int | bool:
    line = decoder.line()
    return line == b"01" if line in (b"00", b"01") else _integer(line)


def _integer(line: bytes) -> int:
    """Parse a number as in C: `0x10` is sixteen, `010` is eight."""
    text = line.decode("ascii", "replace").strip()
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number with too many digits")
    try:
        return int(text, 0)
    except ValueError:
        return int(text, 8 if re.fullmatch(r"[+-]?0[0-7]+", text) else 10)


_uint1, _uint2, _uint4, _uint8 = map(_unpacked, ("<B", "<H", "<I", "<Q"))
_READERS: dict[int, Callable[[OpcodeReader], Any]] = {
    code[0]: reader
    for code, reader in {
        **dict.fromkeys((pickle.PROTO, pickle.BININT1, pickle.BINGET, pickle.BINPUT, pickle.EXT1), _uint1),
        **dict.fromkeys((pickle.BININT2, pickle.EXT2), _uint2),
        **dict.fromkeys((pickle.LONG_BINGET, pickle.LONG_BINPUT), _uint4),
        **dict.fromkeys((pickle.BININT, pickle.EXT4), _unpacked("<i")),
        **{pickle.FRAME: _uint8, pickle.BINFLOAT: _unpacked(">d")},
        **{pickle.LONG1: _long(1), pickle.LONG4: _long(4)},
        **{pickle.SHORT_BINBYTES: _bytes(1), pickle.BINBYTES: _bytes(4), pickle.BINBYTES8: _bytes(8)},
        pickle.BYTEARRAY8: _bytes(8),
        **{pickle.SHORT_BINUNICODE: _text(1, _unicode), pickle.BINUNICODE: _text(4, _unicode)},
        pickle.BINUNICODE8: _text(8, _unicode),
        **{pickle.SHORT_BINSTRING: _text(1, _as_text), pickle.BINSTRING: _text(4, _as_text)},
        **{pickle.STRING: _quoted, pickle.PERSID: lambda d: _as_text(d.line())},
        pickle.UNICODE: lambda d: d.line().decode("raw-unicode-escape", "surrogatepass"),
        **{pickle.INT: _number, pickle.LONG: lambda d: _integer(d.line().removesuffix(b"L"))},
        pickle.FLOAT: lambda d: float(d.line()[:_MAX_DIGITS]),
        **dict.fromkeys((pickle.GET, pickle.PUT), lambda d: int(d.line()[:_MAX_DIGITS])),
        **dict.fromkeys(
            (pickle.GLOBAL, pickle.INST), lambda d: (d.line().decode("utf-8"), d.line().decode("utf-8"))
        ),
    }.items()
}
_PLAIN = frozenset(
    {
        *(pickle.MARK, pickle.STOP, pickle.POP, pickle.POP_MARK, pickle.DUP, pickle.NONE, pickle.REDUCE),
        *(pickle.BINPERSID, pickle.APPEND, pickle.APPENDS, pickle.BUILD, pickle.DICT, pickle.LIST),
        *(pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.EMPTY_SET, pickle.OBJ),
        *(pickle.SETITEM, pickle.SETITEMS, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
        *(pickle.NEWTRUE, pickle.NEWFALSE, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.STACK_GLOBAL),
        *(pickle.MEMOIZE, pickle.ADDITEMS, pickle.FROZENSET, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    }
)


def python3_name(module: str, name: str) -> tuple[str, str]:
    """Return the Python 3 module and name for those of Python 2."""
    renamed = NAME_MAPPING.get((module, name))
    return renamed if renamed is not None else (IMPORT_MAPPING.get(module, module), name)
