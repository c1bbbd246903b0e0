"""Read protocol buffers field by field, by a table of the fields that are wanted. Standard library.

The wire format: https://protobuf.dev/programming-guides/encoding
"""

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelscope_cli.checkpoints.entries import UnsupportedError

_MAX_FIELDS = 20_000_000  # a minute; the largest models have a tenth
Span = tuple[int, int]
Message = dict[str, list[Any]]
# Number, name and kind of each field of a message. A kind is another message, or one of int, float, text and
# raw: bytes that are left where they are.
Messages = Mapping[str, Mapping[int, tuple[str, str]]]


class ProtobufReader:
    """Reads the messages of one file; spans are positions in it."""

    messages: Messages

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self._n_left = _MAX_FIELDS

    def made(self, kind: str, span: Span, depth: int) -> Any:
        """Return what becomes of a message in a message; `depth` is for the reader's own use."""
        return self.message(kind, span, depth)

    def message(self, kind: str, span: Span, depth: int) -> Message:
        """Return the fields of a message as lists, those of messages in it made by `made`."""
        fields = self.messages[kind]
        message: Message = {name: [] for name, _ in fields.values()}
        for number, value in self._fields(span):
            if number not in fields:
                continue
            name, inner = fields[number]
            if inner == "raw":
                message[name].append((number, value))
            elif inner == "int":
                message[name] += [value] if isinstance(value, int) else self.varints(value)
            elif inner == "float":
                message[name] += self._floats(value)
            elif not isinstance(value, tuple):
                raise ValueError("a number where text or a message should be")
            elif inner == "text":
                message[name].append(self.data[slice(*value)].decode("utf-8", errors="replace"))
            else:
                message[name].append(self.made(inner, value, depth))
        return message

    def _fields(self, span: Span) -> Iterator[tuple[int, Any]]:
        """Yield the number of each field, and its value: a number, the bytes of one, or the span of its bytes."""
        at, end = span
        while at < end:
            self._n_left -= 1
            if self._n_left < 0:
                raise UnsupportedError(f"a graph of more than {_MAX_FIELDS:,} entries")
            tag, at = self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                value, at = self._varint(at, end)
                yield number, value - (1 << 64) if value >= 1 << 63 else value
                continue
            size = {1: 8, 5: 4}.get(wire)
            if wire == 2:
                size, at = self._varint(at, end)
            if size is None or not number:
                raise ValueError("bytes that are not those of a protocol buffer")
            if size > end - at:
                raise ValueError(f"{size:,} bytes announced where {end - at:,} are left")
            yield number, (at, at + size) if wire == 2 else self.data[at : at + size]
            at += size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
            shift += 7
        raise ValueError("a number that does not end")

    def varints(self, value: Any, most: int = 1 << 20) -> list[int]:
        """Return the numbers in a run of them; raise UnsupportedError for more than `most`."""
        if not isinstance(value, tuple):
            raise ValueError("something else where a number should be")
        at, end = value
        if end - at > 10 * most:
            raise UnsupportedError(f"more than {most:,} numbers of variable length")
        numbers = []
        while at < end:
            one, at = self._varint(at, end)
            numbers.append(one - (1 << 64) if one >= 1 << 63 else one)
        return numbers

    def _floats(self, value: Any) -> list[float]:
        data = self.data[slice(*value)] if isinstance(value, tuple) else value
        if not isinstance(data, bytes) or len(data) % 4 or len(data) > 1 << 24:
            raise ValueError("something else where numbers should be")
        return [*struct.unpack(f"<{len(data) // 4}f", data)]


def last(values: list[Any], default: Any = "") -> Any:
    """Return a field that a message has once: by the rules of the format the last counts."""
    return values[-1] if values else default


def graph_outputs(names: Sequence[str]) -> bytes:
    """Return bytes that add outputs to an ONNX model: protobuf merges messages that are given again."""
    values = b"".join(_field(12, _field(1, name.encode())) for name in names)
    return _field(7, values)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
