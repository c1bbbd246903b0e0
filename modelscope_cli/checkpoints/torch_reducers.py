"""What the functions that torch names in its pickles would have built. Standard library."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from modelscope_cli.checkpoints.entries import BITS, Shape, checked_name, checked_shape, checked_sizes
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque, Persistent

_STORAGES = {
    **{"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Bool": "bool"},
    **{"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"},
    **{"ComplexFloat": "complex64", "ComplexDouble": "complex128"},
    **{"QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "Untyped": "uint8"},
}
# Of pickled modules; more only where a file repeats the same ones without end.
_MAX_ENTRIES = 60_000
_MAX_ARGUMENTS = 20
# Elements of a tensor that shows the same values again and again, as `expand` makes them.
_MAX_REPEATED = 1 << 28


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage as the pickle names it; `offset` in elements is that of a view, which old files have."""

    key: str
    dtype: str
    nbytes: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as the pickle describes it; offset and stride in elements, no storage for one on meta."""

    shape: Shape
    dtype: str
    storage: StorageRef | None = None
    offset: int = 0
    stride: Shape | None = None
    is_quantized: bool = False


def is_known(name: str) -> bool:
    """Tell what torch itself writes into every checkpoint from what a file brings along."""
    module, _, attribute = name.rpartition(".")
    return (
        name in _CALLS or name in _HARMLESS or (module == "torch" and attribute in BITS) or _is_storage(name)
    )


def rebuild(name: str, args: Any) -> Any:
    """Describe what the function `name` would return for `args`; None where it is not known."""
    is_call = name in _CALLS and isinstance(args, tuple) and len(args) <= _MAX_ARGUMENTS
    return _CALLS[name](*args) if is_call else None


def dtype_of(value: Any) -> str:
    """Return the dtype that a global names.

    Raises:
        ValueError: it names none.
    """
    if isinstance(value, Global) and value.name.removeprefix("torch.") in BITS:
        return value.name.removeprefix("torch.")
    raise ValueError("a dtype that is none")


def storage_of(value: Any) -> StorageRef:
    """Read torch's way to name a storage: `("storage", type, key, device, elements)`.

    Raises:
        ValueError: it is none.
    """
    match value:
        case Persistent(id=("storage", Global(name=name), str(key), str(), int(n), *view)) if _is_storage(
            name
        ):
            dtype = _STORAGES[name.rpartition(".")[2].removesuffix("Storage")]
            (n,) = checked_sizes([n])
            match view:
                case [] | [None]:
                    return StorageRef(key, dtype, n * BITS[dtype] // 8)
                case [(str(), int(offset), int())]:
                    return StorageRef(key, dtype, n * BITS[dtype] // 8, *checked_sizes([offset]))
    if isinstance(value, Opaque):
        raise ValueError(f"a storage that only running '{value.name}' could read")
    raise ValueError("a storage that is none")


def _is_storage(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    kind = attribute.removesuffix("Storage")
    return module in ("torch", "torch.cuda", "torch.storage") and kind != attribute and kind in _STORAGES


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any, dtype: Any = None) -> TensorRef:
    ref, shape, steps = storage_of(storage), checked_shape(size), checked_sizes(stride)
    kind = ref.dtype if dtype is None else dtype_of(dtype)
    (offset,) = checked_sizes([offset])
    offset += ref.offset
    if len(steps) != len(shape):
        raise ValueError("a stride of another length than the shape")
    if math.prod(shape) > max(_MAX_REPEATED, ref.nbytes):
        raise ValueError(f"a tensor of shape {list(shape)} that repeats the few values of its storage")
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if 0 not in shape and (last + 1) * BITS[kind] // 8 > ref.nbytes:
        raise ValueError(f"a tensor of shape {list(shape)} beyond the end of its storage")
    return TensorRef(shape, kind, ref, offset, steps)


def _typed(
    storage: Any, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
) -> TensorRef:
    return _tensor(storage, offset, size, stride, dtype=dtype)


def _quantized(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> TensorRef:
    ref = _tensor(storage, offset, size, stride)
    return TensorRef(ref.shape, ref.dtype, ref.storage, ref.offset, ref.stride, is_quantized=True)


def _meta(dtype: Any, size: Any, *_: Any) -> TensorRef:
    return TensorRef(checked_shape(size), dtype_of(dtype))


def _first(value: Any, *_: Any) -> Any:
    return value


def _by_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    is_tensor = isinstance(function, Global) and function.name.startswith(_UTILS)
    return rebuild(function.name, args) if is_tensor else None


def _mapping(pairs: Any = (), *_: Any) -> Any:
    """An ordered or default dict, given its pairs or (by default dicts) a factory."""
    if isinstance(pairs, dict):
        return dict(pairs)
    is_pairs = isinstance(pairs, list) and all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs)
    return {key: value for key, value in pairs if isinstance(key, str)} if is_pairs else {}


def _size(dimensions: Any = ()) -> Shape:
    return checked_sizes(dimensions)


_UTILS = "torch._utils._rebuild"
_CALLS: dict[str, Callable[..., Any]] = {
    f"{_UTILS}_tensor": _tensor,
    f"{_UTILS}_tensor_v2": _tensor,
    f"{_UTILS}_tensor_v3": _typed,
    f"{_UTILS}_qtensor": _quantized,
    f"{_UTILS}_meta_tensor_no_storage": _meta,
    f"{_UTILS}_parameter": _first,
    f"{_UTILS}_parameter_with_state": _first,
    f"{_UTILS}_device_tensor_from_cpu_tensor": _first,
    "torch._tensor._rebuild_from_type_v2": _by_type,
    "torch.Size": _size,
    "torch.device": _first,
    "collections.OrderedDict": _mapping,
    "collections.defaultdict": _mapping,
    "builtins.set": _first,
    "__builtin__.set": _first,
}
_HARMLESS = {
    *("torch.nn.parameter.Parameter", "torch.Tensor", "torch.serialization._get_layout", "_codecs.encode"),
    *("collections.Counter", "builtins.complex", "builtins.bytearray", f"{_UTILS}_sparse_tensor"),
    *("torch.per_tensor_affine", "torch.per_channel_affine", f"{_UTILS}_wrapper_subclass"),
}


def state_of_module(value: Any) -> Any:
    """Return the state dict of a pickled `nn.Module`, or what it is where it is none.

    Raises:
        ValueError: it goes on without end, or has names that do.
    """
    if not isinstance(value, Opaque) or not isinstance(value.state, dict) or "_modules" not in value.state:
        return value
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", value)]
    n_entries = 0
    while waiting:
        prefix, module = waiting.pop()
        if not isinstance(module, Opaque) or not isinstance(module.state, dict) or id(module) in seen:
            continue
        seen.add(id(module))
        parts = [module.state.get(kind) for kind in ("_parameters", "_buffers", "_modules")]
        parameters, buffers, inner = (part if isinstance(part, dict) else {} for part in parts)
        n_entries += len(parameters) + len(buffers) + len(inner)
        if n_entries > _MAX_ENTRIES:
            raise ValueError(f"a module of more than {_MAX_ENTRIES:,} parts")
        for own in (parameters, buffers):
            found.update(
                {checked_name(f"{prefix}{key}"): item for key, item in own.items() if item is not None}
            )
        waiting += [(checked_name(f"{prefix}{key}."), item) for key, item in reversed(inner.items())]
    return found
