"""Read protocol buffers field by field, by a table of the fields that are wanted. Standard library.

The wire format: https://protobuf.dev/programming-guides/encoding
"""

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import UnsupportedError

_MAX_FIELDS = 20_000_000  # a minute; the largest models have a tenth
Span = tuple[int, int]
Message = dict[str, list[Any]]
# Number, name and kind of each field of a message. A kind is another message, or one of int, float, text and
# raw: bytes that are left where they are.
Messages = Mapping[str, Mapping[int, tuple[str, str]]]
_GRAPH, _INITIALISER, _OUTPUT, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 7, 5, 12, 9, 13, 14  # of ONNX
_LARGE = 4096  # bytes of values above which they are left in their file; shapes are far smaller


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
        for number, value in self.fields(span):
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

    def fields(self, span: Span) -> Iterator[tuple[int, Any]]:
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


def session_model(path: Path, outputs: Sequence[str], location: str | None) -> bytes:
    """Return an ONNX file with further outputs, and with large values left where they are, as external data.

    A runtime maps those from the file, so that they are in memory once.

    Args:
        location: name of the file in the folder that the runtime reads external data from; None to copy all values.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = ProtobufReader(data)

        def copied(number: int, value: Any) -> bytes:
            if isinstance(value, int):
                return _varint(number << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)
            if isinstance(value, tuple):
                return _field(number, data[slice(*value)])
            return _varint(number << 3 | (1 if len(value) == 8 else 5)) + value

        def initialiser(number: int, span: Any) -> bytes:
            fields = [*reader.fields(span)]
            raw = [value for inner, value in fields if inner == _RAW_DATA]
            if location is None or len(raw) != 1 or raw[0][1] - raw[0][0] < _LARGE:
                return copied(number, span)
            place = {"location": location, "offset": str(raw[0][0]), "length": str(raw[0][1] - raw[0][0])}
            pairs = (_field(1, key.encode()) + _field(2, text.encode()) for key, text in place.items())
            kept = b"".join(copied(*one) for one in fields if one[0] != _RAW_DATA)
            is_external = _varint(_DATA_LOCATION << 3) + _varint(1)
            return _field(
                number, b"".join((kept, *(_field(_EXTERNAL_DATA, pair) for pair in pairs), is_external))
            )

        def graph(span: Any) -> bytes:
            return b"".join(
                (initialiser if inner == _INITIALISER else copied)(inner, value)
                for inner, value in reader.fields(span)
            )

        fields = [
            _field(number, graph(value)) if number == _GRAPH else copied(number, value)
            for number, value in reader.fields((0, len(data)))
        ]
    added = b"".join(_field(_OUTPUT, _field(1, name.encode())) for name in outputs)
    return b"".join((*fields, _field(_GRAPH, added)))  # protobuf merges messages that are given again


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
