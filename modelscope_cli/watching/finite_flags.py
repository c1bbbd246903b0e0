"""Where a NaN was born: a cheap mark of every tensor of the current step, read only where the step went wrong.

A mark is the range of a tensor, which is finite where every element is. It stays on the device; of a very large
tensor it is that of an even sample. Marks are in the order in which the tensors were computed, so that the first
that is not finite names the place.
"""

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.statistics.sampling import even_sample, in_memory_order
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.records.training_facts import BETWEEN, INPUT, OUTPUT, PARAMETER

_EXACT = 1 << 22  # elements of an output: reading them all is next to nothing beside computing them
_SAMPLE = 1 << 15  # of a parameter or its gradient: whatever spoils one spoils whole rows of it
_MOST = (
    4096  # marks, then they are read after all: accumulation over many passes, or a model that never steps
)


Range = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Mark:
    """A tensor was computed: `what` of which layer, in which of its calls, and its least and greatest value."""

    what: str
    name: str
    call: int
    range: Range


@dataclass(slots=True)
class FiniteFlags:
    """The marks of one model since its last step."""

    _marks: list[Mark] = field(default_factory=list)
    _gradients: dict[str, Range] = field(default_factory=dict)
    _seen: dict[int, tuple["weakref.ref[Tensor]", int]] = field(default_factory=dict)

    def begin(self, root: nn.Module) -> None:
        """Mark the parameters before the first pass of a step, and make room before any other."""
        if len(self._marks) > _MOST and _first(self._marks) is None:
            self._marks = []
        self._seen = {}
        if not self._marks:
            for name, parameter in root.named_parameters():
                self._add(PARAMETER, name, 0, parameter)

    def see(self, what: str, name: str, call: int, value: Any) -> None:
        """Mark the tensors in what a module is given or gives, but none twice."""
        for x in _tensors(value):
            # What needs no gradient is often a mask, and infinite on purpose; a lone number is a loss.
            if not x.ndim or (what == BETWEEN and not x.requires_grad):
                continue
            seen = self._seen.get(id(x))
            version = version_of(x)
            if seen is None or seen[0]() is not x or seen[1] != version:
                self._seen[id(x)] = weakref.ref(x), version
                self._add(what, name, call, x)

    def see_gradients(self, root: nn.Module) -> None:
        """Mark the gradients as the backward pass left them: clipping spreads a NaN over all of them."""
        self._gradients = {
            name: mark
            for name, parameter in root.named_parameters()
            if parameter.grad is not None and (mark := _mark(parameter.grad, _SAMPLE)) is not None
        }

    def first(self) -> Mark | None:
        """Return the first mark that is not finite; waits for the device."""
        return _first(self._marks)

    @property
    def has_outputs(self) -> bool:
        return any(mark.what == OUTPUT for mark in self._marks)

    def spoilt_gradients(self) -> list[str]:
        """Return the parameters whose gradient was not finite behind the last backward pass."""
        ranges = _read(list(self._gradients.values()))
        return [name for name, ends in zip(self._gradients, ranges, strict=True) if not _is_finite(ends)]

    def forget_gradients(self) -> None:
        self._gradients = {}

    def nearest_to_loss(self, parameters: Iterable[str]) -> str:
        """Return the parameter whose layer ran last: everything before it is given its gradient."""
        places = {mark.name: place for place, mark in enumerate(self._marks) if mark.what == OUTPUT}
        order = {name: place for place, name in enumerate(self._gradients)}
        return max(parameters, key=lambda name: (places.get(name.rpartition(".")[0], -1), -order[name]))

    def _add(self, what: str, name: str, call: int, x: Tensor) -> None:
        ends = _mark(x, _SAMPLE if what == PARAMETER else _EXACT)
        if ends is not None and len(self._marks) < 2 * _MOST:
            self._marks.append(Mark(what, name, call, ends))


def _tensors(value: Any) -> Iterable[Tensor]:
    """Return the tensors in an output or in arguments: mostly one, and what it takes to search a tree is saved."""
    if type(value) is Tensor:
        return (value,)
    if type(value) is tuple and all(type(one) is Tensor for one in value):
        return value
    return (x for _, x in tensors_in(value))


def _mark(x: Tensor, most: int = _EXACT) -> Range | None:
    """Return the range of a tensor, NaN twice where there is one; None for one of a kind that is in no order.

    Args:
        most: elements; of a tensor of more of them it is the range of an even sample.
    """
    if type(x) not in (Tensor, nn.Parameter) or not x.is_floating_point() or x.dtype.itemsize == 1:
        return None
    x = x.detach()
    if x.layout is not torch.strided or x.is_meta or x.is_nested or not x.numel():
        return None
    if x.numel() > most:
        x = even_sample(in_memory_order(x), most)[0]
    low, high = torch.aminmax(x)
    return low, high


def _first(marks: list[Mark]) -> Mark | None:
    """Return the first mark that is not finite; an input that goes down to -inf is a mask."""
    for mark, (low, high) in zip(marks, _read([mark.range for mark in marks]), strict=True):
        is_mask = mark.what == INPUT and high < math.inf
        if not is_mask and not _is_finite((low, high)):
            return mark
    return None


def _is_finite(ends: tuple[float, float]) -> bool:
    return all(map(math.isfinite, ends))


def _read(ranges: list[Range]) -> list[tuple[float, float]]:
    """Fetch numbers, with one transfer for each device and dtype."""
    found = [(math.nan, math.nan)] * len(ranges)
    for kind in {(low.device, low.dtype) for low, _ in ranges}:
        places = [place for place, (low, _) in enumerate(ranges) if (low.device, low.dtype) == kind]
        flat = torch.stack([end for place in places for end in ranges[place]]).tolist()
        for place, low, high in zip(places, flat[::2], flat[1::2], strict=True):
            found[place] = low, high
    return found
