"""Lossless JSON for partial results: every float, infinite ones too, and every element of a tensor."""

import dataclasses
import json
import math
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from modelscope_cli.records.naming import dtype_name

T = TypeVar("T")
Reader = Callable[[Any], Any]


def to_text(value: Any) -> str:
    """Return dataclasses, tuples, dicts, numbers, strings and tensors as one line of JSON."""
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def from_plain(kind: type[T], value: Any) -> T:
    """Return the value of type `kind` that `to_text` wrote, from the output of `json.loads`."""
    return _reader(kind)(value)  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in (str, int, bool) or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _names(kind)}  # type: ignore[arg-type]
    if isinstance(value, dict):
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, (tuple, list)):
        is_flags = bool(value) and all(type(item) is bool for item in value)
        return "".join("01"[item] for item in value) if is_flags else [_plain(item) for item in value]
    if isinstance(value, Tensor):
        whole = value.detach().cpu().contiguous()
        data = whole.view(-1).view(torch.uint8) if whole.numel() else whole.new_empty(0, dtype=torch.uint8)
        text = b64encode(bytes(data.numpy())).decode()
        return {"dtype": dtype_name(whole.dtype), "shape": list(whole.shape), "data": text}
    raise TypeError(f"no exact text of a {kind.__name__}")


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Return the stored fields: those with `repr`; the others have a default."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.repr)


@cache
def _reader(kind: Any) -> Reader:
    """Return the reader for an annotation."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [argument for argument in arguments if argument is not types.NoneType]
        return _optional(_reader(kinds[0])) if len(kinds) == 1 else lambda value: value  # words or numbers
    if origin is tuple:
        is_any_length = len(arguments) == 2 and arguments[1] is ...
        return _sequence(arguments[0]) if is_any_length else _fixed(tuple(map(_reader, arguments)))
    if origin is dict:
        read_key, read_item = map(_reader, arguments)
        return lambda pairs: {read_key(key): read_item(item) for key, item in pairs}
    if kind is float:
        return lambda value: float(value) if isinstance(value, str) else value
    if kind is Tensor:
        return _tensor
    return _fields(kind) if dataclasses.is_dataclass(kind) else lambda value: value


def _optional(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _sequence(kind: Any) -> Reader:
    if kind is bool:
        return lambda value: tuple(flag == "1" for flag in value)
    if kind in (int, str):
        return tuple
    read = _reader(kind)
    return lambda value: tuple(map(read, value))


def _fixed(readers: tuple[Reader, ...]) -> Reader:
    return lambda value: tuple(read(item) for read, item in zip(readers, value, strict=True))


def _fields(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind)
    readers = [(name, _reader(hints[name])) for name in _names(kind)]
    return lambda value: kind(**{name: read(value[name]) for name, read in readers})


def _tensor(value: dict[str, Any]) -> Tensor:
    kind = getattr(torch, value["dtype"])
    data = bytearray(b64decode(value["data"]))
    flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.view(value["shape"])
