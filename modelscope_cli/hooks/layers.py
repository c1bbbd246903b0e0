"""The layers of a model and the tensors in their inputs and outputs."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from modelscope_cli.hooks.patterns import Layer
from modelscope_cli.hooks.torch_private import children_of


def list_layers(model: nn.Module) -> list[tuple[Layer, nn.Module]]:
    """Return every distinct module with its first name, parents before children; the model itself first."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return [
        (
            Layer(
                name=first,
                type=type(module).__name__,
                is_leaf=_is_leaf(module),
                depth=first.count(".") + 1 if first else 0,
                aliases=tuple(others),
            ),
            module,
        )
        for module, (first, *others) in names.items()
    ]


def _is_leaf(module: nn.Module) -> bool:
    # MultiheadAttention's only child holds a weight that the attention uses by itself; it never runs.
    return isinstance(module, nn.MultiheadAttention) or next(module.children(), None) is None


def tensors_in(value: Any) -> list[tuple[str, torch.Tensor]]:
    """Flatten a layer's output (or its arguments) into `(path, tensor)` pairs.

    The path is empty for a lone tensor, `0` or `out` for an entry, `0.boxes` for a nested one. Tuples, lists,
    dicts, named tuples, dataclasses and nested tensors are entered; anything else that is not a tensor is left out.
    """
    return list(_walk(value, ""))


def _walk(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.is_nested:  # its parts have shapes, it has none
            yield from _walk(value.unbind(), path)
        else:
            yield path, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name), _join(path, field.name))
    else:
        children, _ = children_of(value) or ((), None)
        for key, child in children:
            yield from _walk(child, _join(path, key))


def map_tensors(value: Any, change: Callable[[str, torch.Tensor], torch.Tensor], path: str = "") -> Any:
    """Return `value` with every tensor in it replaced by `change(path, tensor)`, in the order of `tensors_in`.

    Tuples, lists, dicts, named tuples and dataclasses stay what they were, and where nothing is replaced the very
    same object comes back. A nested tensor is handed over whole.
    """
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        fields = [getattr(value, name) for name in names]
        changed = [
            map_tensors(old, change, _join(path, name)) for name, old in zip(names, fields, strict=True)
        ]
        if all(new is old for new, old in zip(changed, fields, strict=True)):
            return value
        made = copy.copy(value)
        for name, new in zip(names, changed, strict=True):
            try:
                setattr(made, name, new)  # some dataclasses are dicts as well, and keep both alike here
            except dataclasses.FrozenInstanceError:
                object.__setattr__(made, name, new)
        return made
    found = children_of(value)
    if found is None:
        return value
    children, remake = found
    changed = [map_tensors(child, change, _join(path, key)) for key, child in children]
    if all(new is old for new, (_, old) in zip(changed, children, strict=True)):
        return value
    return remake(changed)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
