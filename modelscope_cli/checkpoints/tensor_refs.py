"""Tensors and storages as a pickle refers to them. Standard library."""

import math
from dataclasses import dataclass, field
from typing import Any

from modelscope_cli.checkpoints.entries import BITS, Shape, UnsupportedError, checked_shape, checked_sizes
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque, Persistent

_STORAGES = {
    **{"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Bool": "bool"},
    **{"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"},
    **{"ComplexFloat": "complex64", "ComplexDouble": "complex128"},
    **{"QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "Untyped": "uint8"},
    **{"QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4"},
}
# Elements of a tensor that shows the same values again and again, as `expand` makes them.
_MAX_REPEATED = 1 << 28


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage as the pickle names it; `offset` in elements is that of a view, which old files have.

    Attributes:
        data: its bytes, where they stand in the pickle itself.
    """

    key: str
    dtype: str
    nbytes: int
    offset: int = 0
    data: bytes | bytearray | str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as the pickle describes it: what `TensorEntry` says, before its storage is looked for."""

    shape: Shape
    dtype: str
    storage: StorageRef | None = None
    offset: int = 0
    stride: Shape | None = None
    special: str | None = None
    is_conj: bool = False
    is_neg: bool = False
    held: int | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BITS[self.dtype] // 8 if self.held is None else self.held


def dtype_of(value: Any) -> str:
    """Return the dtype that a global names.

    Raises:
        UnsupportedError: a dtype of torch that is not known here.
        ValueError: it does not name one.
    """
    name = value.name.removeprefix("torch.") if isinstance(value, Global) else ""
    if name in BITS:
        return name
    if name and "." not in name:
        raise UnsupportedError(f"the dtype '{name}', which this program does not know")
    raise ValueError("something else where a dtype should be")


def storage_of(value: Any) -> StorageRef:
    """Read torch's way to name a storage: `("storage", type, key, device, elements)`.

    Raises:
        ValueError: it is not one.
    """
    match value:
        case StorageRef():  # out of a pickle inside the pickle
            return value
        case Persistent(id=("storage", Global(name=name), str(key), str(), int(n), *view)) if is_storage(
            name
        ):
            dtype = dtype_of_storage(Global(name))
            (n,) = checked_sizes([n])
            bits = max(8, BITS[dtype])  # of smaller ones, torch counts the bytes
            match view:
                case [] | [None]:
                    return StorageRef(key, dtype, n * bits // 8)
                case [(str(), int(offset), int())]:
                    return StorageRef(key, dtype, n * bits // 8, checked_sizes([offset])[0])
    if isinstance(value, Opaque):
        raise UnsupportedError(f"a storage that only running '{value.name}' could read")
    raise ValueError("something else where a storage should be")


def dtype_of_storage(value: Any) -> str:
    """Return the dtype of a class of storages.

    Raises:
        ValueError: it does not name one.
    """
    if not isinstance(value, Global) or not is_storage(value.name):
        raise ValueError("something else where a class of storages should be")
    return _STORAGES[value.name.rpartition(".")[2].removesuffix("Storage")]


def is_storage(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    kind = attribute.removesuffix("Storage")
    return module in ("torch", "torch.cuda", "torch.storage") and kind != attribute and kind in _STORAGES


def strided(storage: Any, offset: int, size: Any, stride: Any, dtype: Any) -> TensorRef:
    """Describe a tensor that looks at a storage; `dtype` is that of the storage where it is None.

    Raises:
        ValueError: it looks beyond the storage, or what should be numbers is not.
    """
    ref, shape, steps = storage_of(storage), checked_shape(size), checked_sizes(stride)
    kind = ref.dtype if dtype is None else dtype_of(dtype)
    (offset,) = checked_sizes([offset])
    offset += ref.offset
    if len(steps) != len(shape):
        raise ValueError("a stride of another length than the shape")
    if math.prod(shape) > max(_MAX_REPEATED, ref.nbytes):
        raise UnsupportedError(f"a tensor of shape {list(shape)} that repeats the few values of its storage")
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if 0 not in shape and (last + 1) * BITS[kind] // 8 > ref.nbytes:
        raise ValueError(f"a tensor of shape {list(shape)} beyond the end of its storage")
    return TensorRef(shape, kind, ref, offset, steps)
