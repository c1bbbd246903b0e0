"""Describe the tensors of a safetensors file by its header, which the library of the format reads and checks."""

import math
import re
from pathlib import Path

from modelscope_cli.checkpoints.entries import (
    BITS,
    Contents,
    Shape,
    Storage,
    TensorEntry,
    UnsupportedError,
    checked_shape,
    in_order,
)
from modelscope_cli.checkpoints.file_type import damaged, guess, is_safetensors, read_head, remedy
from modelscope_cli.errors import CannotRunError

_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "C64": "complex64"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "F8_E4M3": "float8_e4m3fn"},
    **{"F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz"},
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_SAFETENSORS_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_safetensors(path: Path) -> Contents:
    """Describe the tensors of a safetensors file."""
    from safetensors import SafetensorError, safe_open  # with NumPy

    head = read_head(path)
    if not is_safetensors(head):
        is_linked = path.resolve() != Path.cwd() / path  # do not quote the target of a link
        message = f"checkpoint '{path}' is not a valid safetensors file: {guess(head, quoted=not is_linked)}"
        raise CannotRunError(message, remedy(path, head))
    at = 8 + int.from_bytes(head[:8], "little")
    tensors: list[TensorEntry] = []
    try:
        with safe_open(path, framework="np") as file:
            metadata = dict(sorted((file.metadata() or {}).items()))  # the library has no order
            for name in file.offset_keys():  # one behind the other, without a gap
                part = file.get_slice(name)
                tensors.append(_entry(path, name, part.get_dtype(), tuple(part.get_shape()), at))
                at += tensors[-1].nbytes
    except (SafetensorError, OSError, ValueError) as error:
        unknown = re.search(r"unknown variant `(\w+)`", str(error))
        reason = UnsupportedError(f"the dtype '{unknown[1]}', which is unknown") if unknown else error
        raise damaged(path, reason) from error
    # The order in the file is arbitrary.
    entries = tuple(sorted(tensors, key=lambda tensor: in_order(tensor.name)))
    return Contents(path, "safetensors", entries, metadata=metadata, files=(path,))


def safetensors_form(tensor: TensorEntry) -> tuple[str, Shape] | None:
    """Return the dtype and shape of a tensor in this format; None if it cannot hold it."""
    name = _SAFETENSORS_NAMES.get(tensor.dtype)
    return (name, tensor.shape) if name is not None else None


def _entry(path: Path, name: str, kind: str, size: Shape, position: int) -> TensorEntry:
    if kind not in _DTYPES:
        raise UnsupportedError(f"the dtype '{kind}', which is unknown")
    dtype, shape = _DTYPES[kind], checked_shape(size)
    nbytes = math.prod(shape) * BITS[dtype] // 8
    return TensorEntry(name, shape, dtype, Storage(path, name, position, nbytes))
