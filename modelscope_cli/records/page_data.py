"""The data inside a page: complete documents for `read` and the page's script. Standard library only.

They are in one `<script type="application/json">`, escaped so that nothing can end the element. Short ones are
plain JSON. In long ones the series of numbers are packed separately, so that the page of a deep network stays
small. A list of integers becomes `{"~i": [place, length]}`, a table of them `{"~t": [place,
rows, columns]}`, column by column. Other numbers, `{"~f": [place, length]}`, are kept as a decimal
fraction each, `mantissa * 10 ** exponent`, which is exact (except for the sign of a zero). Every stream of
numbers is split into planes of bytes, the lowest first, which compress well; the whole is gzip in base64.
"""

import base64
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

ELEMENT = "modelscope-data"
_ISLAND = re.compile(rb'<script type="application/json" id="modelscope-data">(.*?)</script>', re.DOTALL)
_SHORT = 60_000  # characters up to which a document is not packed
_LEAST = 8  # numbers in a list that is packed
_MOST = 1 << 48  # the largest number that the script can decode without loss
_MISSING = 127  # in place of an exponent
_MOST_BYTES = 1 << 30  # when unpacked, against decompression bombs; no page holds more


class NotAPageError(ValueError):
    """Not a page of modelscope, or its data is damaged."""


def embed(documents: Sequence[dict[str, Any]]) -> str:
    """Return the element that holds documents, which are strict JSON: no NaN, no infinities."""
    text = _json(list(documents))
    data = text if len(text) <= _SHORT else _json(_packed(documents))
    return f'<script type="application/json" id="{ELEMENT}">{data}</script>'


def is_page(page: bytes) -> bool:
    """Tell whether this is a page of modelscope, with or without a result."""
    return _ISLAND.search(page) is not None


def extract(page: bytes) -> list[dict[str, Any]]:
    island = _ISLAND.search(page)
    if island is None:
        raise NotAPageError("it holds no data of modelscope")
    try:
        data = json.loads(island[1])
        documents = data if isinstance(data, list) else _unpacked(data)
    except (ValueError, LookupError, TypeError, EOFError, OSError, zlib.error, RecursionError) as error:
        raise NotAPageError("its data is damaged") from error
    if not documents or not all(isinstance(one, dict) for one in documents):
        raise NotAPageError("its data is damaged")
    return list(documents)


def _json(value: Any) -> str:
    """Return JSON in which nothing begins or ends an HTML element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _packed(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    streams: dict[str, list[int]] = {"whole": [], "mantissa": [], "exponent": []}
    parts = [_json([_without_numbers(one, streams) for one in documents]).encode()]
    parts += [_planes(numbers) for numbers in streams.values()]
    data = gzip.compress(b"".join(parts), 9, mtime=0)
    counts = [len(numbers) for numbers in streams.values()]
    return {"packed": 1, "text": len(parts[0]), "counts": counts, "data": base64.b64encode(data).decode()}


def _without_numbers(value: Any, streams: dict[str, list[int]]) -> Any:
    """Return a value with its long lists of numbers moved to the streams."""
    if isinstance(value, dict):
        return {key: _without_numbers(item, streams) for key, item in value.items()}
    if not isinstance(value, list | tuple):
        return value
    place = len(streams["whole"])
    if _are_whole(value):
        streams["whole"] += map(_folded, value)
        return {"~i": [place, len(value)]}
    if bool(value) and all(map(_are_whole, value)) and len({len(row) for row in value}) == 1:
        streams["whole"] += (_folded(item) for column in zip(*value, strict=True) for item in column)
        return {"~t": [place, len(value), len(value[0])]}
    place, split = len(streams["mantissa"]), _fractions(value)
    if split:
        streams["mantissa"] += (_folded(mantissa) for mantissa, _ in split)
        streams["exponent"] += (exponent + 128 for _, exponent in split)
        return {"~f": [place, len(value)]}
    return [_without_numbers(item, streams) for item in value]


def _are_whole(value: Any) -> bool:
    is_long = isinstance(value, list | tuple) and len(value) >= _LEAST
    return is_long and {type(item) for item in value} == {int} and max(map(abs, value)) < _MOST // 2


def _fractions(value: Sequence[Any]) -> list[tuple[int, int]]:
    """Return mantissa and exponent of each; empty unless all are numbers, enough, and short enough."""
    kinds = {type(item) for item in value}
    if len(value) < _LEAST or float not in kinds or not kinds <= {int, float, type(None)}:
        return []
    split = [_split(item) for item in value]
    fits = all(abs(mantissa) < _MOST // 2 and -127 < exponent <= _MISSING for mantissa, exponent in split)
    return split if fits else []


def _split(value: float | None) -> tuple[int, int]:
    """Return mantissa and exponent, in powers of ten, of the shortest decimal fraction that is this number."""
    if value is None:
        return 0, _MISSING
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    mantissa = int("".join(map(str, digits)))
    return (-mantissa if sign else mantissa), int(exponent)


def _folded(value: int) -> int:
    """Zigzag-encode an integer: 0, -1, 1, -2 as 0, 1, 2, 3."""
    return 2 * value if value >= 0 else -2 * value - 1


def _planes(values: Sequence[int]) -> bytes:
    """Return the bytes per number, then all lowest bytes, all second ones, and so on."""
    width = (max(values, default=0).bit_length() + 7) // 8
    return bytes([width]) + b"".join(
        bytes(value >> 8 * place & 255 for value in values) for place in range(width)
    )


def _unpacked(data: dict[str, Any]) -> list[dict[str, Any]]:
    unzip = zlib.decompressobj(wbits=31)
    raw = unzip.decompress(base64.b64decode(data["data"], validate=True), _MOST_BYTES)
    if unzip.unconsumed_tail or not unzip.eof:
        raise ValueError("cut off, or far too large")
    length = data["text"]
    streams, place = [], length
    for count in data["counts"]:
        width = raw[place]
        planes = raw[place + 1 : place + 1 + width * count]
        if len(planes) != width * count:
            raise ValueError("too short")
        streams.append(_from_planes(planes, count))
        place += 1 + width * count
    documents: list[dict[str, Any]] = _with_numbers(json.loads(raw[:length]), streams)
    return documents


def _from_planes(planes: bytes, count: int) -> list[int]:
    values = [0] * count
    for place in range(len(planes) // max(count, 1)):
        plane = planes[place * count : (place + 1) * count]
        values = [value + (byte << 8 * place) for value, byte in zip(values, plane, strict=True)]
    return values


def _with_numbers(value: Any, streams: Sequence[Sequence[int]]) -> Any:
    if isinstance(value, list):
        return [_with_numbers(item, streams) for item in value]
    if not isinstance(value, dict):
        return value
    whole, mantissas, exponents = streams
    match value:
        case {"~i": [int(at), int(n)]}:
            return [_unfolded(number) for number in whole[at : at + n]]
        case {"~t": [int(at), int(n), int(m)]}:
            return [[_unfolded(number) for number in whole[at + row : at + n * m : n]] for row in range(n)]
        case {"~f": [int(at), int(n)]}:
            pairs = zip(mantissas[at : at + n], exponents[at : at + n], strict=True)
            return [_joined(_unfolded(mantissa), exponent - 128) for mantissa, exponent in pairs]
    return {key: _with_numbers(item, streams) for key, item in value.items()}


def _unfolded(number: int) -> int:
    return number // 2 if number % 2 == 0 else -(number + 1) // 2


def _joined(mantissa: int, exponent: int) -> float | None:
    return None if exponent == _MISSING else float(f"{mantissa}e{exponent}")
