"""Read the header of a safetensors file: eight bytes of length, then JSON. Standard library.

The format: https://huggingface.co/docs/safetensors/index#format
"""

import json
import math
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import (
    BITS,
    Contents,
    Shape,
    Storage,
    TensorEntry,
    UnsupportedError,
    checked_shape,
    checked_sizes,
    in_order,
)
from modelscope_cli.checkpoints.file_type import damaged, guess, is_safetensors, read_head, remedy
from modelscope_cli.errors import CannotRunError

# Limit of the safetensors library.
MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
_Fields = tuple[str, Shape, tuple[int, int]]  # dtype, shape, begin and end in the data
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "C64": "complex64"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "F8_E4M3": "float8_e4m3fn"},
    **{"F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz"},
    **{"F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn"},
    **{"F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn"},
}
# Two 4-bit numbers share a byte, which is one element in torch.
_PAIRS = {"float4_e2m1fn": "float4_e2m1fn_x2"}
_NOT_OF_TORCH = {"float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}
_SAFETENSORS_NAMES = {dtype: name for name, dtype in _DTYPES.items() if dtype not in _NOT_OF_TORCH}
# One of possibly a million members of the header: read one by one, as parsed JSON takes up to 25 times the memory
# of its text. Objects are not nested.
_SPACE = r"[ \t\r\n]*+"
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MEMBER = re.compile(
    rf"{_SPACE}(?P<name>{_STRING}){_SPACE}:{_SPACE}"
    rf'(?P<value>null|\{{(?:[^{{}}"]++|{_STRING})*+\}}){_SPACE}(?P<end>[,}}])'
)
# A member in the usual form; parsing a million as JSON takes much longer.
_COUNT = r"(?:0|[1-9][0-9]{0,15})"
_USUAL = re.compile(
    rf'{_SPACE}"([^"\\\x00-\x1f]*+)"{_SPACE}:{_SPACE}\{{{_SPACE}"dtype"{_SPACE}:{_SPACE}"([A-Z0-9_]++)"{_SPACE},'
    rf'{_SPACE}"shape"{_SPACE}:{_SPACE}\[((?:{_COUNT}(?:, ?{_COUNT})*+)?)\]{_SPACE},'
    rf'{_SPACE}"data_offsets"{_SPACE}:{_SPACE}\[({_COUNT}), ?({_COUNT})\]{_SPACE}\}}{_SPACE}([,}}])'
)
_BEGIN = re.compile(rf"{_SPACE}\{{({_SPACE}\}}{_SPACE}$)?")
_END = re.compile(rf"{_SPACE}\Z")
_STRINGS = re.compile(rf"\{{(?:{_SPACE}{_STRING}{_SPACE}:{_SPACE}{_STRING}{_SPACE},?)*+{_SPACE}\}}")
_MAX_ENTRY = 1 << 16


def read_safetensors(path: Path) -> Contents:
    """Describe the tensors of a safetensors file."""
    head = read_head(path)
    if not is_safetensors(head):
        is_linked = path.resolve() != Path.cwd() / path  # do not quote the target of a link
        message = f"checkpoint '{path}' is not a whole safetensors file: {guess(head, quoted=not is_linked)}"
        raise CannotRunError(message, remedy(path, head))
    n_header = int.from_bytes(head[:8], "little")
    n_data = path.stat().st_size - 8 - n_header
    if n_data < 0:
        raise damaged(path, f"a header of {n_header} bytes in a file of {path.stat().st_size}")
    if n_header > MAX_HEADER_BYTES:
        raise damaged(path, f"a header of {n_header} bytes, and the format allows {MAX_HEADER_BYTES}")
    try:
        with path.open("rb") as file:
            file.seek(8)
            text = file.read(n_header).decode()
        metadata: dict[str, str] = {}
        tensors: dict[str, TensorEntry] = {}
        for name, value in _members(text):
            if name in tensors or (name == _METADATA and metadata):
                raise ValueError("the same name twice")
            if name == _METADATA:
                metadata = _metadata(value)
            else:
                fields = _fields(value) if isinstance(value, str) else value
                tensors[name] = _entry(path, name, fields, 8 + n_header)
        _check_layout(list(tensors.values()), 8 + n_header, n_data)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        reason = error if isinstance(error, UnsupportedError) else f"its header has {_words(error)}"
        raise damaged(path, reason) from error
    # The order in the file is arbitrary.
    entries = tuple(sorted(tensors.values(), key=lambda tensor: in_order(tensor.name)))
    return Contents(path, "safetensors", entries, metadata=metadata, files=(path,))


def safetensors_form(tensor: TensorEntry) -> tuple[str, Shape] | None:
    """Return the dtype and shape of a tensor in this format; None if it cannot hold it."""
    if tensor.dtype in _SAFETENSORS_NAMES:
        return _SAFETENSORS_NAMES[tensor.dtype], tensor.shape
    if tensor.dtype == "float4_e2m1fn_x2" and tensor.shape:
        return "F4", (*tensor.shape[:-1], tensor.shape[-1] * 2)
    return None


def _members(text: str) -> Iterator[tuple[str, str | _Fields]]:
    """Yield the name of each member of the JSON object, with the text of its value or its parsed fields."""
    begin = _BEGIN.match(text)
    if begin is None:
        raise ValueError("no readable JSON")
    at, is_open = begin.end(), begin[1] is None
    while is_open:
        usual = _USUAL.match(text, at)
        if usual is not None:
            name, dtype, shape, start, stop, end = usual.groups()
            yield name, (dtype, tuple(map(int, shape.split(","))) if shape else (), (int(start), int(stop)))
            at, is_open = usual.end(), end == ","
            continue
        member = _MEMBER.match(text, at)
        if member is None:
            raise ValueError("no readable JSON")
        name = json.loads(member["name"])
        name.encode()  # raises for a lone surrogate, which the library refuses, too
        yield name, member["value"]
        at, is_open = member.end(), member["end"] == ","
    if not _END.match(text, at):
        raise ValueError("no readable JSON")


def _metadata(text: str | _Fields) -> dict[str, str]:
    if text == "null":
        return {}
    if not isinstance(text, str) or not _STRINGS.fullmatch(text):
        raise ValueError("metadata that is not text")
    metadata: dict[str, str] = json.loads(text, object_pairs_hook=_once_each)
    for word in (*metadata, *metadata.values()):
        word.encode()
    return metadata


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("the same name twice")
    return members


def _fields(text: str) -> _Fields:
    if len(text) > _MAX_ENTRY:
        raise ValueError("entries of another form")
    value = json.loads(text, object_pairs_hook=_once_each)
    return value["dtype"], value["shape"], value["data_offsets"]


def _entry(path: Path, name: str, fields: _Fields, base: int) -> TensorEntry:
    if fields[0] not in _DTYPES:
        raise UnsupportedError(f"the dtype '{fields[0]}', which is unknown")
    dtype, shape = _DTYPES[fields[0]], checked_shape(fields[1])
    begin, end = checked_sizes(fields[2])
    special = None
    if dtype in _PAIRS and shape and shape[-1] % 2 == 0:
        dtype, shape = _PAIRS[dtype], (*shape[:-1], shape[-1] // 2)
    elif dtype in _NOT_OF_TORCH:
        special = "of a dtype that torch does not have"
    n_bits = math.prod(shape) * BITS[dtype]
    if (end - begin) * 8 != n_bits:
        raise ValueError(f"{end - begin} bytes for '{name}', whose shape needs {n_bits // 8}")
    storage = Storage(path, name, base + begin, end - begin)
    return TensorEntry(name, shape, dtype, storage, special=special)


def _check_layout(tensors: list[TensorEntry], base: int, n_data: int) -> None:
    """Check that the tensors are contiguous and fill the file, as the format requires."""
    storages = [tensor.storage for tensor in tensors if tensor.storage]
    storages.sort(key=attrgetter("position", "nbytes"))
    at = base
    for storage in storages:
        if storage.position != at:
            raise ValueError(f"offsets that overlap or leave a gap at '{storage.key}'")
        at += storage.nbytes
    if at != base + n_data:
        raise ValueError(f"{at - base} bytes of tensors for {n_data} in the file")


def _words(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeError | RecursionError):
        return "no readable JSON"
    return str(error) if isinstance(error, ValueError) else "entries of another form"
