"""What the functions that torch names in its pickles would have built. Standard library."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from modelscope_cli.checkpoints import special_tensors as special
from modelscope_cli.checkpoints.entries import BITS, Shape, checked_sizes
from modelscope_cli.checkpoints.numpy_arrays import ARRAY_CALLS
from modelscope_cli.checkpoints.pickle_machine import Global
from modelscope_cli.checkpoints.tensor_refs import TensorRef, is_storage, strided

_MAX_ARGUMENTS = 20


def is_known(name: str) -> bool:
    """Tell what torch itself writes into every checkpoint from what a file brings along."""
    module, _, attribute = name.rpartition(".")
    return (
        name in _CALLS or name in _HARMLESS or (module == "torch" and attribute in BITS) or is_storage(name)
    )


def rebuild(name: str, args: Any) -> Any:
    """Describe what the function `name` would return for `args`; None where it is not known."""
    is_call = name in _REBUILT and isinstance(args, tuple) and len(args) <= _MAX_ARGUMENTS
    return _REBUILT[name](*args) if is_call else None


def _tensor(
    storage: Any,
    offset: int,
    size: Any,
    stride: Any,
    grad: Any = None,
    hooks: Any = None,
    bits: Any = None,
    *_: Any,
) -> TensorRef:
    """`bits` says of a tensor that its values are the conjugate or the negative of those in the storage."""
    return _with_bits(strided(storage, offset, size, stride, None), bits)


def _typed(
    storage: Any,
    offset: int,
    size: Any,
    stride: Any,
    grad: Any,
    hooks: Any,
    dtype: Any,
    bits: Any = None,
    *_: Any,
) -> TensorRef:
    return _with_bits(strided(storage, offset, size, stride, dtype), bits)


def _with_bits(ref: TensorRef, bits: Any) -> TensorRef:
    if not isinstance(bits, dict) or not bits:
        return ref
    return replace(ref, is_conj=bits.get("conj") is True, is_neg=bits.get("neg") is True)


def _first(value: Any, *_: Any) -> Any:
    return value


def _by_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    """A tensor of a class of its own, or with attributes: `function(*args)`, then given `state`."""
    if not isinstance(function, Global) or not isinstance(args, tuple):
        return None
    if function.name == _WRAPPER:
        return special.wrapper(*args, state=state)
    if function.name == _JAGGED:
        return special.jagged(*args)
    return rebuild(function.name, args) if function.name.startswith(_UTILS) else None


def _mapping(pairs: Any = (), *_: Any) -> Any:
    """An ordered or default dict, given its pairs or (by default dicts) a factory."""
    if isinstance(pairs, dict):
        return dict(pairs)
    is_pairs = isinstance(pairs, list) and all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs)
    return {key: value for key, value in pairs if isinstance(key, str | int)} if is_pairs else {}


def _size(dimensions: Any = ()) -> Shape:
    return checked_sizes(dimensions)


_UTILS = "torch._utils._rebuild"
_WRAPPER = f"{_UTILS}_wrapper_subclass"
_JAGGED = "torch.nested._internal.nested_tensor._rebuild_njt"
_CALLS: dict[str, Callable[..., Any]] = {
    f"{_UTILS}_tensor": _tensor,
    f"{_UTILS}_tensor_v2": _tensor,
    f"{_UTILS}_sparse_tensor": special.sparse,
    f"{_UTILS}_nested_tensor": special.nested,
    _WRAPPER: special.wrapper,
    f"{_UTILS}_tensor_v3": _typed,
    f"{_UTILS}_qtensor": special.quantized,
    f"{_UTILS}_meta_tensor_no_storage": special.meta,
    f"{_UTILS}_parameter": _first,
    f"{_UTILS}_parameter_with_state": _first,
    f"{_UTILS}_device_tensor_from_cpu_tensor": _first,
    "torch._tensor._rebuild_from_type_v2": _by_type,
    "torch.Size": _size,
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
_REBUILT = {**_CALLS, **ARRAY_CALLS}
