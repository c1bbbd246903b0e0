"""Read the header of a safetensors file: eight bytes of length, then JSON. Standard library.

The format: https://huggingface.co/docs/safetensors/index#format
"""

import json
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import (
    Contents,
    Storage,
    TensorEntry,
    checked_name,
    checked_shape,
    checked_sizes,
    in_order,
)
from modelscope_cli.checkpoints.file_type import damaged, guess, read_head, remedy
from modelscope_cli.errors import CannotRunError

# Room for some 60,000 tensors; parsed JSON takes up to 25 times the memory of its text.
MAX_HEADER_BYTES = 8 << 20
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "C64": "complex64"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "F8_E4M3": "float8_e4m3fn"},
    **{"F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz"},
    **{"F8_E5M2FNUZ": "float8_e5m2fnuz"},
}
SAFETENSORS_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_safetensors(path: Path) -> Contents:
    """Describe the tensors of a safetensors file.

    Raises:
        CannotRunError: not such a file, or a header that contradicts itself or the file (exit 4).
    """
    head = read_head(path)
    if head[8:9] != b"{":
        message = f"checkpoint '{path}' is not a whole safetensors file: {guess(head)}"
        raise CannotRunError(message, remedy(path, head))
    n_header = int.from_bytes(head[:8], "little")
    n_data = path.stat().st_size - 8 - n_header
    if n_data < 0:
        raise damaged(path, f"a header of {n_header} bytes in a file of {path.stat().st_size}")
    if n_header > MAX_HEADER_BYTES:
        raise damaged(path, f"a header of {n_header} bytes, more than {MAX_HEADER_BYTES}")
    with path.open("rb") as file:
        text = file.read(8 + n_header)[8:]
    try:
        header = json.loads(text, object_pairs_hook=_once_each)
        metadata = header.pop("__metadata__", {})
        tensors = [_entry(path, name, value, 8 + n_header) for name, value in header.items()]
        _check_layout(tensors, 8 + n_header, n_data)
        if not all(isinstance(item, str) for item in [*metadata, *metadata.values()]):
            raise ValueError("metadata that is not text")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise damaged(path, f"its header has {_words(error)}") from error
    tensors.sort(key=lambda tensor: in_order(tensor.name))  # the file has no order of its own
    return Contents(path, "safetensors", tuple(tensors), metadata=metadata, files=(path,))


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("the same name twice")
    return found


def _entry(path: Path, name: str, value: dict[str, Any], base: int) -> TensorEntry:
    if value["dtype"] not in _DTYPES:
        raise ValueError(f"the unknown dtype '{value['dtype']}'")
    dtype, shape = _DTYPES[value["dtype"]], checked_shape(value["shape"])
    begin, end = checked_sizes(value["data_offsets"])
    entry = TensorEntry(checked_name(name), shape, dtype, Storage(path, name, base + begin, end - begin))
    if end - begin != entry.nbytes:
        raise ValueError(f"{end - begin} bytes for '{name}', whose shape needs {entry.nbytes}")
    return entry


def _check_layout(tensors: list[TensorEntry], base: int, n_data: int) -> None:
    """The tensors lie one after the other and fill the file, as the format asks."""
    at = base
    for storage in sorted((t.storage for t in tensors if t.storage), key=lambda s: (s.position, s.nbytes)):
        if storage.position != at:
            raise ValueError(f"offsets that overlap or leave a gap at '{storage.key}'")
        at += storage.nbytes
    if at != base + n_data:
        raise ValueError(f"{at - base} bytes of tensors for {n_data} in the file")


def _words(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "no readable JSON"
    return str(error) if type(error) is ValueError else "entries of another form"
