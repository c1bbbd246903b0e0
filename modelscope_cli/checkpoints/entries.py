"""Describe the content of a checkpoint: tensors, storages and other values. Standard library."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Shape = tuple[int, ...]

# Bits of one element, by torch's name of the dtype.
BITS = {
    **{"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "bool": 8, "complex32": 32},
    **{"complex64": 64, "complex128": 128, "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8},
    **{"uint64": 64, "uint32": 32, "uint16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e8m0fnu": 8},
    **{"float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float4_e2m1fn_x2": 8},
    **{"qint8": 8, "quint8": 8, "qint32": 32, "quint4x2": 4, "quint2x4": 2},
    **{f"{kind}{bits}": 8 for kind in ("int", "uint") for bits in range(1, 8)},
    # Only in safetensors, not in torch.
    **{"float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6},
}
# Formats that hold a program as well as tensors.
TORCH_SCRIPT, TORCH_EXPORT = "TorchScript", "torch.export (.pt2)"
MAX_DIMENSIONS = 64
# Total characters of joined names: a hostile file may repeat long parts without end.
_MAX_NAMES = 64 << 20
_COST_OF_A_NAME = 64
_MAX_NUMEL = 2**60
_NUMBER = re.compile(r"[0-9]+")


class UnsupportedError(ValueError):
    """Valid content that is not supported; its text completes "... is not read: "."""


@dataclass(slots=True)  # not frozen, which is four times as slow to create, and there may be a million
class Storage:
    """A run of bytes in a file that one or more tensors view."""

    file: Path
    key: str  # unique among the storages of the file
    position: int  # byte offset in `file`; of the zip entry's header if `is_zipped`
    nbytes: int
    is_zipped: bool = False  # whether a local zip header of variable length precedes the bytes
    # The bytes themselves if inside a message of ONNX
    data: bytes | bytearray | None = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.key, self.position))


@dataclass(slots=True, unsafe_hash=True)  # not frozen: see Storage
class TensorEntry:
    """One named tensor, without its values."""

    name: str
    shape: Shape
    dtype: str
    storage: Storage | None  # None without values, as of a meta tensor
    # offset, stride: in elements of `storage`; stride None if contiguous
    offset: int = 0
    stride: Shape | None = None
    # Kind of a tensor whose values are not the numbers in its storage: `quantized`, `nested`
    special: str | None = None
    held: int | None = None  # bytes of the parts of a special tensor

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * BITS[self.dtype] // 8 if self.held is None else self.held

    @property
    def place(self) -> tuple[Any, ...] | None:
        """Key that is equal for two names of the same tensor."""
        if self.storage is None:
            return None
        return (self.storage, self.offset, self.shape, self.stride, self.special)


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a checkpoint."""

    path: Path
    format: str  # in words
    tensors: tuple[TensorEntry, ...]  # of the state dict; all tensors without one
    # Other values by name: `epoch` -> `3`, `optimizer` -> `186 tensors, 3 numbers`
    beside: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)  # of safetensors files and shard indexes
    foreign: tuple[str, ...] = ()  # functions and classes that loading it in full would import or run
    note: str | None = None  # the place of the state dict; None if it is the whole content
    files: tuple[Path, ...] = ()  # the files that were read
    # Entries of the state dict that are not tensors but contain some: packed parameters
    inside: tuple[str, ...] = ()
    image_size: int | None = None  # on which it was trained, if the file says so
    classes: tuple[str, tuple[str, ...]] | None = None  # as `class_names` returns them
    # The class of a model that was saved whole, and how it is reached in what torch.load returns: `['model']`
    saved_as: tuple[str, str] = ("", "")

    def shapes(self) -> dict[str, Shape]:
        return {tensor.name: tensor.shape for tensor in self.tensors}


def checked_shape(value: Any) -> Shape:
    """Return a value as a shape; raise ValueError where it cannot be one."""
    shape = checked_sizes(value)
    if math.prod(shape) > _MAX_NUMEL:
        raise ValueError("a shape with more elements than fit in any memory")
    return shape


def checked_sizes(value: Any) -> Shape:
    """Return sizes or file positions as a tuple; raise ValueError for anything else."""
    if not isinstance(value, list | tuple):
        raise ValueError("a size or an offset that is not a number from 0 to 2^60")
    if len(value) > MAX_DIMENSIONS:
        raise UnsupportedError(f"a tensor of more than {MAX_DIMENSIONS} dimensions")
    for size in value:
        if type(size) is not int or not 0 <= size <= _MAX_NUMEL:
            raise ValueError("a size or an offset that is not a number from 0 to 2^60")
    return tuple(value)


class NameJoiner:
    """Joins names up to a total length."""

    def __init__(self) -> None:
        self._left = _MAX_NAMES

    def join(self, *parts: str) -> str:
        """Return the parts as one name; raise UnsupportedError if all names together are too long."""
        self._left -= _COST_OF_A_NAME + sum(map(len, parts))
        if self._left < 0:
            raise UnsupportedError("names that are too long, with the same parts repeated")
        return "".join(parts)


def in_order(name: str) -> str:
    """Return a natural sort key: `features.3` before `features.10`."""
    return _NUMBER.sub(lambda number: number[0].zfill(20), name)
