"""Describe the tensors and storages in a pickle, and the results of torch's rebuild functions.

Standard library.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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
# Maximum elements of an expanded tensor.
_MAX_REPEATED = 1 << 28


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage as referenced by the pickle; `offset`, in elements, is that of a view in old files."""

    key: str
    dtype: str
    nbytes: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as described by the pickle: a `TensorEntry` before its storage is located."""

    shape: Shape
    dtype: str
    storage: StorageRef | None = None
    offset: int = 0
    stride: Shape | None = None
    special: str | None = None
    held: int | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BITS[self.dtype] // 8 if self.held is None else self.held


def dtype_of(value: Any) -> str:
    """Return the dtype named by a global."""
    name = value.name.removeprefix("torch.") if isinstance(value, Global) else ""
    if name in BITS:
        return name
    if name and "." not in name:
        raise UnsupportedError(f"the dtype '{name}', which is unknown")
    raise ValueError("something else where a dtype should be")


def storage_of(value: Any) -> StorageRef:
    """Parse torch's reference to a storage: `("storage", type, key, device, elements)`."""
    match value:
        case Persistent(id=("storage", Global(name=name), str(key), str(), int(n), *view)) if is_storage(
            name
        ):
            dtype = _STORAGES[name.rpartition(".")[2].removesuffix("Storage")]
            (n,) = checked_sizes([n])
            bits = max(8, BITS[dtype])  # for smaller dtypes torch counts bytes
            match view:
                case [] | [None]:
                    return StorageRef(key, dtype, n * bits // 8)
                case [(str(), int(offset), int())]:
                    return StorageRef(key, dtype, n * bits // 8, checked_sizes([offset])[0])
    if isinstance(value, Opaque):
        raise UnsupportedError(f"a storage that can only be read by running '{value.name}'")
    raise ValueError("something else where a storage should be")


def is_storage(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    kind = attribute.removesuffix("Storage")
    return module in ("torch", "torch.cuda", "torch.storage") and kind != attribute and kind in _STORAGES


def strided(storage: Any, offset: int, size: Any, stride: Any, dtype: Any) -> TensorRef:
    """Describe a strided tensor; `dtype` None means that of the storage."""
    ref, shape, steps = storage_of(storage), checked_shape(size), checked_sizes(stride)
    kind = ref.dtype if dtype is None else dtype_of(dtype)
    (offset,) = checked_sizes([offset])
    offset += ref.offset
    if len(steps) != len(shape):
        raise ValueError("stride and shape have different lengths")
    if math.prod(shape) > max(_MAX_REPEATED, ref.nbytes):
        raise UnsupportedError(f"a tensor of shape {list(shape)} that repeats the few values of its storage")
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if 0 not in shape and (last + 1) * BITS[kind] // 8 > ref.nbytes:
        raise ValueError(f"a tensor of shape {list(shape)} beyond the end of its storage")
    return TensorRef(shape, kind, ref, offset, steps)


def quantized(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> TensorRef:
    return replace(strided(storage, offset, size, stride, None), special="quantized")


def meta(dtype: Any, size: Any, *_: Any) -> TensorRef:
    return TensorRef(checked_shape(size), dtype_of(dtype))


def sparse(layout: Any, data: Any) -> TensorRef | None:
    """Describe a sparse tensor; `data` has the indices (two for compressed layouts), the values and the size."""
    parts = [part for part in data if isinstance(part, TensorRef)]
    sizes = [part for part in data if isinstance(part, tuple | list)]
    if not parts or not sizes:
        return None
    name = layout.args[0] if isinstance(layout, Opaque) and layout.args else layout
    kind = str(name).removeprefix("torch.sparse_").upper()
    nbytes = sum(part.nbytes for part in parts)
    return TensorRef(checked_shape(sizes[0]), parts[-1].dtype, special=f"sparse ({kind})", held=nbytes)


def nested(buffer: Any, *_: Any) -> TensorRef | None:
    return replace(buffer, special="nested") if isinstance(buffer, TensorRef) else None


def wrapper(kind: Any, dtype: Any, size: Any, *_: Any, state: Any = None) -> TensorRef:
    """Describe a tensor subclass made of other tensors; only the code of its class can compute the values."""
    name = kind.name if isinstance(kind, Global) else "an unknown class"
    parts = [part for part in _attributes(state).values() if isinstance(part, TensorRef)]
    return TensorRef(
        checked_shape(size),
        dtype_of(dtype),
        special=f"of class {name}",
        held=sum(part.nbytes for part in parts),
    )


def _attributes(state: Any) -> dict[Any, Any]:
    """Return the attributes in a state: a dict, or a pair with that of slots."""
    attributes: dict[Any, Any] = {}
    for part in state if isinstance(state, tuple) else [state]:
        attributes.update(part if isinstance(part, dict) else {})
    return attributes


_MAX_ARGUMENTS = 20


def is_known(name: str) -> bool:
    """Tell whether torch itself writes this name into checkpoints."""
    module, _, attribute = name.rpartition(".")
    is_dtype = module == "torch" and attribute in BITS
    return name in _CALLS or name in _HARMLESS or is_dtype or is_storage(name)


def rebuild(name: str, args: Any) -> Any:
    """Describe the result of the function `name` for `args`; None if unknown."""
    is_call = name in _CALLS and isinstance(args, tuple) and len(args) <= _MAX_ARGUMENTS
    return _CALLS[name](*args) if is_call else None


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *rest: Any) -> TensorRef:
    """Describe a tensor; `rest`: `requires_grad`, hooks, and the conjugate and negative bits."""
    return _with_bits(strided(storage, offset, size, stride, None), *rest[2:3])


def _typed(
    storage: Any, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *bits: Any
) -> TensorRef:
    return _with_bits(strided(storage, offset, size, stride, dtype), *bits[:1])


def _with_bits(ref: TensorRef, bits: Any = None) -> TensorRef:
    is_view = isinstance(bits, dict) and any(bits.get(name) is True for name in ("conj", "neg"))
    return replace(ref, special="a conjugate or negative view") if is_view else ref


def _first(value: Any, *_: Any) -> Any:
    return value


def _by_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    """Describe a tensor subclass or one with attributes: `function(*args)`, then `state` is set."""
    if not isinstance(function, Global) or not isinstance(args, tuple):
        return None
    if function.name == _WRAPPER:
        return wrapper(*args, state=state)
    return rebuild(function.name, args) if function.name.startswith(_UTILS) else None


def _mapping(pairs: Any = (), *_: Any) -> Any:
    """Describe an ordered or default dict made of pairs, or of a factory."""
    if isinstance(pairs, dict):
        return dict(pairs)
    is_pairs = isinstance(pairs, list) and all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs)
    return {key: value for key, value in pairs if isinstance(key, str | int)} if is_pairs else {}


_UTILS = "torch._utils._rebuild"
_WRAPPER = f"{_UTILS}_wrapper_subclass"
_CALLS: dict[str, Callable[..., Any]] = {
    f"{_UTILS}_tensor": _tensor,
    f"{_UTILS}_tensor_v2": _tensor,
    f"{_UTILS}_sparse_tensor": sparse,
    f"{_UTILS}_nested_tensor": nested,
    _WRAPPER: wrapper,
    f"{_UTILS}_tensor_v3": _typed,
    f"{_UTILS}_qtensor": quantized,
    f"{_UTILS}_meta_tensor_no_storage": meta,
    f"{_UTILS}_parameter": _first,
    f"{_UTILS}_parameter_with_state": _first,
    f"{_UTILS}_device_tensor_from_cpu_tensor": _first,
    "torch._tensor._rebuild_from_type_v2": _by_type,
    "torch.Size": lambda dimensions=(): checked_sizes(dimensions),
    "torch.device": _first,
    "torch.serialization._get_layout": _first,
    "collections.OrderedDict": _mapping,
    "collections.defaultdict": _mapping,
    "builtins.set": _first,
    "__builtin__.set": _first,
}
_HARMLESS = {
    *("torch.nn.parameter.Parameter", "torch.Tensor", "_codecs.encode", "collections.Counter"),
    *("builtins.complex", "builtins.bytearray", "torch.per_tensor_affine", "torch.per_channel_affine"),
}
