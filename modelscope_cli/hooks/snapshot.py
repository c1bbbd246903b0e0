"""Save and restore everything a forward pass may change in a model."""

import operator
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.errors import refuse_failed_device
from modelscope_cli.hooks.random_states import RandomState

# Hooks, parameters, buffers and submodules are in dicts, a user's caches in any of these. OrderedDict first, as
# its order is not that of the underlying dict.
_CONTAINERS = (OrderedDict, dict, list, set)


class Snapshot:
    """A saved state of a model and of torch, for `restore`.

    Saved: every attribute of every module (with training flags) and the entries of dicts, lists and sets (with
    hooks, parameters, buffers, submodules), the values of buffers, `requires_grad` and `grad` of every parameter,
    the attention fast-path flag, and the random state. Parameter values are
    not copied, as nothing in the tool writes to them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._attributes = [(module, dict(module.__dict__)) for module in model.modules()]
        self._contents = [
            (container, _entries(container))
            for _, attributes in self._attributes
            for container in attributes.values()
            if isinstance(container, _CONTAINERS)
        ]
        # Meta tensors have no values, inference tensors cannot be written to, and no layer writes to other layouts.
        self._buffers = [
            (buffer, value)
            for buffer in model.buffers()
            if not (buffer.is_meta or buffer.is_inference() or buffer.is_nested)
            and buffer.layout == torch.strided
            and (value := _copied(buffer)) is not None
        ]
        self._parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
        self._has_fastpath = torch.backends.mha.get_fastpath_enabled()
        self._rng = RandomState()

    def restore(self) -> None:
        for module, attributes in self._attributes:
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for container, entries in self._contents:
            _put_back(container, *entries)
        for parameter, requires_grad, grad in self._parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
        torch.backends.mha.set_fastpath_enabled(self._has_fastpath)
        self._rng.restore()
        # Batch norm updates its statistics without changing `_version`, so compare values; on an accelerator this
        # would wait. Writing to `data` does not count as a change: graphs that saved it can still run backward.
        with torch.no_grad():
            for buffer, value in self._buffers:
                if buffer.device.type != "cpu" or not _has_values(buffer, value):
                    _write(buffer.data, value)


def _kind(container: Any) -> Any:
    """Return the built-in class of a container, as a subclass may override its methods."""
    kind = type(container)
    return kind if kind in _CONTAINERS else next(kind for kind in _CONTAINERS if isinstance(container, kind))


def _entries(container: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the keys or items of a container, and the values of a dict."""
    kind = _kind(container)
    if not kind.__len__(container):  # as most hooks, parameters and submodules
        return (), ()
    values = list(kind.values(container)) if issubclass(kind, dict) else ()
    return list(kind.__iter__(container)), values


def _put_back(container: Any, keys: Sequence[Any], values: Sequence[Any]) -> None:
    """Restore the entries of a container, unless it holds the same objects in the same order."""
    kind = _kind(container)
    if (
        kind.__len__(container) == len(keys)
        and all(map(operator.is_, kind.__iter__(container), keys))
        and all(map(operator.is_, kind.values(container) if values else (), values))
    ):
        return
    kind.clear(container)
    if issubclass(kind, dict):
        for key, value in zip(keys, values, strict=True):
            kind.__setitem__(container, key, value)
    else:
        (kind.extend if kind is list else kind.update)(container, keys)


def _copied(tensor: Tensor) -> Tensor | None:
    """Copy a tensor; None for the few kinds that torch cannot copy, which nothing writes to."""
    try:
        return tensor.detach().clone()
    except RuntimeError as error:
        refuse_failed_device(error)
        return None


def _write(tensor: Tensor, value: Tensor) -> None:
    """Copy values into a tensor, expanded or not."""
    where = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    tensor[where].copy_(value[where])


def _has_values(tensor: Tensor, value: Tensor) -> bool:
    """Tell whether a tensor equals its copy; NaN equals NaN."""
    is_number = tensor.is_floating_point() or tensor.is_complex()
    if tensor.shape != value.shape or torch.equal(tensor, value) or not is_number:
        return tensor.shape == value.shape and torch.equal(tensor, value)
    wide = torch.complex128 if tensor.is_complex() else torch.float64  # float8 cannot be compared
    a, b = tensor.to(wide), value.to(wide)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
