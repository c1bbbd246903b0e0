"""A trace of the current step, in which `non_finite_origin` finds the first non-finite value.

Small tensors are copied; for large ones the range is computed, which is finite only if every element is. They stay
on the device, in order of computation, until a loss or a gradient is not finite.
"""

import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.statistics.quantiles import even_sample, in_memory_order
from modelscope_cli.analysis.statistics.reduce import WHOLE_UP_TO
from modelscope_cli.hooks.fetch import Deferred, numbers
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.watching.parameters import norms_of

_COPIED = 1 << 12  # elements: copying them takes half the time of computing their range
_MOST_RECORDED = 1 << 22  # elements of the recorded outputs of a step that are copied
_EXACT = 1 << 22  # elements of an output: reading them is cheap compared with computing them
_SAMPLE = 1 << 15  # of a parameter or its gradient: non-finite values fill whole rows
MOST = 4096  # entries before they are read: for accumulation over many passes, or a model without steps


Range = tuple[Tensor, Tensor]

BEGUN, ENTERED, LEFT, CALLED = "begun", "entered", "left", "called"


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a pass: its begin, a module entered or left, or the call of a function."""

    what: str  # one of `BEGUN`, `ENTERED`, `LEFT`, `CALLED`
    who: Any  # a reference to the module, or the name and call of the function; None for the pass
    ranges: list[Range]  # of its input or output tensors, except those of the previous entry


@dataclass(frozen=True, slots=True)
class Suspects:
    """The check of a step with non-finite values, before its weights change."""

    # The first non-finite value: its role, layer and call; None if all are finite
    first: tuple[str, str, int] | None
    order: dict[str, int]  # the layers that ran, in the order in which they ended


@dataclass(slots=True)
class FiniteFlags:
    """The trace of one model since its last step."""

    trace: list[Entry] = field(default_factory=list)
    # Parameters whose gradient was not finite after the last backward pass
    spoilt: list[str] = field(default_factory=list)
    _last: tuple[Tensor, int] | None = None
    _copied: tuple[Tensor, int, Tensor] | None = None  # a tensor, its version, its copy
    _room: int = _MOST_RECORDED

    def copy_of(self, x: Tensor) -> Tensor | None:
        """Return a copy of an output, the same for one just copied; None where it is large or not on the CPU."""
        if (last := self._copied) is not None and last[0] is x and last[1] == version_of(x):
            return last[2]
        is_plain = x.is_cpu and x.dtype == torch.float32 and x.layout is torch.strided and type(x) is Tensor
        n = x.numel() if is_plain and not x.is_nested else 0
        if not 0 < n <= min(WHOLE_UP_TO, self._room):
            return None
        self._room -= n
        self._copied = x, version_of(x), x.detach().clone()
        return self._copied[2]

    def see(self, what: str, who: Any, value: Any, *, is_recorded: bool = False) -> None:
        """Keep the tensors in the input or output of a module, but none twice in a row."""
        ranges = []
        for _, x in tensors_in(value):
            last, version = self._last, version_of(x)
            # A scalar is a loss. An input of a layer that needs no gradient is often a mask.
            if (last is None or last[0] is not x or last[1] != version) and x.ndim:
                self._last = x, version
                if what == ENTERED and self.trace and self.trace[-1].what != BEGUN and not x.requires_grad:
                    continue
                copy = self.copy_of(x) if is_recorded else None
                if (ends := range_of(x) if copy is None else (copy, copy)) is not None:
                    ranges.append(ends)
        self.trace.append(Entry(what, weakref.ref(who) if isinstance(who, nn.Module) else who, ranges))

    def see_gradients(self, root: nn.Module, norms: list[float] | None = None) -> bool:
        """Check the gradients right after the backward pass: clipping spreads a NaN to all of them.

        Args:
            norms: of the gradients, if they are there.

        Returns:
            Whether all are finite.
        """
        self.spoilt, self._last, self._copied = [], None, None
        if not all(map(math.isfinite, gradient_norms(root)() if norms is None else norms)):
            grads = {name: p.grad for name, p in root.named_parameters() if p.grad is not None}
            ranges = {name: ends for name, x in grads.items() if (ends := range_of(x, _SAMPLE)) is not None}
            self.spoilt = [
                name
                for name, ends in zip(ranges, read(list(ranges.values())), strict=True)
                if not is_finite(ends)
            ]
        return not self.spoilt


def gradient_norms(root: nn.Module) -> Deferred[list[float]]:
    return numbers(norms_of(p.grad for p in root.parameters() if p.grad is not None))


def range_of(x: Tensor, most: int = _EXACT) -> Range | None:
    """Return the range of a tensor, two NaN if it holds one; None for a dtype without an order.

    For a small tensor two copies are returned, of which `read` computes the range.

    Args:
        most: number of elements above which an even sample is used.
    """
    if type(x) not in (Tensor, nn.Parameter) or not x.is_floating_point() or x.dtype.itemsize == 1:
        return None
    x = x.detach()
    if x.layout is not torch.strided or x.is_meta or x.is_nested or not (n := x.numel()):
        return None
    if n <= _COPIED:
        x = x.clone()
        return x, x
    if n > most:
        x = even_sample(in_memory_order(x), most)[0]
    low, high = torch.aminmax(x)
    return low, high


def is_finite(ends: tuple[float, float]) -> bool:
    return all(map(math.isfinite, ends))


def read(ranges: list[Range]) -> list[tuple[float, float]]:
    """Return the numbers, with one wait for each device."""
    ranges = [torch.aminmax(low) if low is high else (low, high) for low, high in ranges]
    ends = numbers(end for pair in ranges for end in pair)()
    return list(zip(ends[::2], ends[1::2], strict=True))
