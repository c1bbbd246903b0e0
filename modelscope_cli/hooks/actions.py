"""Apply the actions of `--hook` to one tensor, differentiably and never in place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.hooks.spec import HookSpec
from modelscope_cli.records.naming import dtype_name


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Context of a tensor for an action."""

    channel_dim: int | None  # its channel dimension; None without channels
    seed: int  # of random actions, different for every call


class LeftAloneError(Exception):
    """The action does not apply to this tensor; the message says why."""


def change(spec: HookSpec, tensor: Tensor, place: TensorPlace) -> Tensor:
    """Apply a changing action: same shape, dtype and device."""
    _refuse_unusual(tensor)
    if spec.action != "zero" and not tensor.is_floating_point():
        raise LeftAloneError(f"it is of {dtype_name(tensor.dtype)}")
    act = _ACTIONS[spec.action]
    if not spec.channels:
        return act(tensor, place, *spec.arguments)
    dim, chosen = _chosen(spec, tensor, place)
    part = tensor.index_select(dim, chosen)
    return tensor.index_copy(dim, chosen, act(part, place, *spec.arguments))


def part_of(spec: HookSpec, tensor: Tensor, place: TensorPlace) -> Tensor:
    """Return the channels a hook is limited to, for actions that change nothing."""
    _refuse_unusual(tensor)
    return tensor.index_select(*_chosen(spec, tensor, place)) if spec.channels else tensor


def _refuse_unusual(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise LeftAloneError("it is sparse, quantized or nested")


def _chosen(spec: HookSpec, tensor: Tensor, place: TensorPlace) -> tuple[int, Tensor]:
    if place.channel_dim is None:
        raise LeftAloneError("it has no channels")
    chosen = sorted({channel for first, last in spec.channels for channel in range(first, last + 1)})
    return place.channel_dim, torch.tensor(chosen, device=tensor.device)


def _noise(x: Tensor, place: TensorPlace, std: float) -> Tensor:
    # On the CPU, for the same numbers on every device.
    drawn = torch.randn(x.shape, generator=(torch.Generator().manual_seed(place.seed)))
    return x + std * drawn.to(x.device, x.dtype)


def _mean(x: Tensor, place: TensorPlace) -> Tensor:
    dims = _positions(x, place)
    # A copy: in-place layers cannot write to an expanded tensor.
    return x.mean(dims, keepdim=True).expand_as(x).clone() if dims else x


def _keep(x: Tensor, place: TensorPlace, n: int) -> Tensor:
    if place.channel_dim is None:
        raise LeftAloneError("it has no channels")
    others = [dim for dim in range(x.ndim) if dim != place.channel_dim]
    strength = x.detach().float().nan_to_num().abs()
    strength = strength.mean(others) if others else strength
    is_kept = torch.zeros_like(strength, dtype=torch.bool)
    is_kept[strength.topk(min(n, len(strength))).indices] = True
    shape = [-1 if dim == place.channel_dim else 1 for dim in range(x.ndim)]
    return x.masked_fill(~is_kept.reshape(shape), 0)


def _positions(x: Tensor, place: TensorPlace) -> tuple[int, ...]:
    """Return the dimensions other than batch and channels; if none, all but the batch."""
    images = {0} if x.ndim > 1 else set()
    every = set(range(x.ndim)) - images
    return tuple(sorted(every - {place.channel_dim} or every))


_ACTIONS: dict[str, Callable[..., Any]] = {
    # Not zeros, to keep the graph with a zero gradient; not 0 * x, which is NaN where x is infinite.
    "zero": lambda x, place: x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0),
    "scale": lambda x, place, factor: x * factor,
    "add": lambda x, place, value: x + value,
    "clamp": lambda x, place, low, high: x.clamp(low, high),
    "noise": _noise,
    "mean": _mean,
    "keep": _keep,
    "nan-to-num": lambda x, place: torch.nan_to_num(x),
}
