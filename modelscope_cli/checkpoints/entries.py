"""What there is to say about the content of a checkpoint. Standard library."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelscope_cli.plain_text import plain

Shape = tuple[int, ...]

# Bits of one element, by torch's name of the dtype.
BITS = {
    **{"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "bool": 8, "complex32": 32},
    **{"complex64": 64, "complex128": 128, "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8},
    **{"uint64": 64, "uint32": 32, "uint16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e8m0fnu": 8},
    **{"float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float4_e2m1fn_x2": 8},
    **{"qint8": 8, "quint8": 8, "qint32": 32},
}
MAX_DIMENSIONS = 64
# Far beyond any real name; many long ones would fill the memory, built as they are from parts that a file repeats.
_MAX_NAME = 500
_MAX_NUMEL = 2**60
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of bytes in a file that one or more tensors look at.

    Attributes:
        key: tells it from the other storages of the file.
        position: where in `file` it begins, in bytes; the header of a zip entry where `is_zipped`.
        is_zipped: the local header of a zip entry stands before the bytes, and only there says how long it is.
    """

    file: Path
    key: str
    position: int
    nbytes: int
    is_zipped: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a tensor that lies in several storages: its first index and its shape.

    The bytes of `storage` are themselves a file that `torch.save` wrote.
    """

    storage: Storage
    start: Shape
    shape: Shape


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One named tensor, without its values.

    Attributes:
        offset, stride: in elements, into `storage`; None for the stride of a contiguous tensor.
        storage: None where the values are nowhere (a meta tensor) or in `chunks`.
        is_quantized: its numbers are codes, whose scale only torch can read.
    """

    name: str
    shape: Shape
    dtype: str
    storage: Storage | None
    offset: int = 0
    stride: Shape | None = None
    chunks: tuple[Chunk, ...] = ()
    is_quantized: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * BITS[self.dtype] // 8

    @property
    def place(self) -> tuple[Any, ...] | None:
        """What is equal for two names of the same tensor."""
        return (self.storage, self.offset, self.shape, self.stride) if self.storage else None


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that was found in a checkpoint.

    Attributes:
        format: in words.
        tensors: those of the state dict; all there are where no state dict was found.
        beside: what else is there, by name: `epoch` -> `3`, `optimizer` -> `186 tensors, 3 numbers`.
        metadata: of safetensors files and shard indexes.
        foreign: functions and classes that loading it in full would import or run.
        note: where the state dict stood; None where it is the whole content.
        files: the files that were looked at.
    """

    path: Path
    format: str
    tensors: tuple[TensorEntry, ...]
    beside: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    note: str | None = None
    files: tuple[Path, ...] = ()

    def shapes(self) -> dict[str, Shape]:
        return {tensor.name: tensor.shape for tensor in self.tensors}


def checked_shape(value: Any) -> Shape:
    """Return a shape that makes sense.

    Raises:
        ValueError: it is none.
    """
    shape = checked_sizes(value)
    if math.prod(shape) > _MAX_NUMEL:
        raise ValueError("a shape of more elements than any memory holds")
    return shape


def checked_sizes(value: Any) -> Shape:
    """Return numbers that may be sizes or places in a file.

    Raises:
        ValueError: they cannot.
    """
    if not isinstance(value, Sequence) or len(value) > MAX_DIMENSIONS or not all(map(_is_size, value)):
        raise ValueError("sizes that are none")
    return tuple(value)


def checked_name(name: str) -> str:
    """Return a name that a tensor may have.

    Raises:
        ValueError: too long for one.
    """
    if len(name) > _MAX_NAME:
        raise ValueError(f"a name of more than {_MAX_NAME} characters")
    return name


def in_order(name: str) -> str:
    """Return a key that sorts names as people count: `features.3` before `features.10`."""
    return _NUMBER.sub(lambda match: match[0].zfill(20), name)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_NUMEL


def printable(name: str) -> str:
    """Return a name out of a file so that printing it cannot steer the terminal."""
    return plain(name)
