"""What of the step that is being prepared is kept, so that a NaN can be traced to where it was born.

While a step goes well nothing is computed from it: a small tensor is copied, and of a large one the range is taken,
which is finite where every element is. They stay on the device, in the order in which they were computed, until a
loss or a gradient is not finite; then `births` names the first that is not.
"""

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.statistics.quantiles import even_sample, in_memory_order
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.watching.parameters import fetched, norms_of

_COPIED = 1 << 12  # elements: to copy so few takes half the time of finding their range
_EXACT = 1 << 22  # elements of an output: reading them all is next to nothing beside computing them
_SAMPLE = 1 << 15  # of a parameter or its gradient: whatever spoils one spoils whole rows of it
MOST = (
    4096  # entries, then they are read after all: accumulation over many passes, or a model that never steps
)


Range = tuple[Tensor, Tensor]

BEGUN, ENTERED, LEFT, CALLED = "begun", "entered", "left", "called"


@dataclass(frozen=True, slots=True)
class Entry:
    """What happened in a pass: it began, a module was entered or left, a function that has a row was called.

    Attributes:
        what: one of `BEGUN`, `ENTERED`, `LEFT`, `CALLED`.
        who: a reference to the module, or the name and call of the function; None for the pass.
        ranges: of the tensors that it was given, or gave, and that no entry just before has.
    """

    what: str
    who: Any
    ranges: list[Range]


@dataclass(frozen=True, slots=True)
class Suspects:
    """What was looked at in a step that went wrong, before its weights change.

    Attributes:
        first: what was not finite first: `what` of which layer, in which call; None where all was.
        order: the layers that ran, in the order in which they ended.
    """

    first: tuple[str, str, int] | None
    order: dict[str, int]


@dataclass(slots=True)
class FiniteFlags:
    """The trace of one model since its last step.

    Attributes:
        spoilt: parameters whose gradient was not finite behind the last backward pass.
    """

    trace: list[Entry] = field(default_factory=list)
    spoilt: list[str] = field(default_factory=list)
    _last: tuple[Tensor, int] | None = None

    def see(self, what: str, who: Any, value: Any) -> None:
        """Keep the tensors in what a module is given or gives, but none twice in a row."""
        ranges = []
        for x in _tensors(value):
            last, version = self._last, version_of(x)
            # A lone number is a loss. What is given between layers and needs no gradient is often a mask.
            if (last is None or last[0] is not x or last[1] != version) and x.ndim:
                self._last = x, version
                is_given_between = what == ENTERED and self.trace and self.trace[-1].what != BEGUN
                if (not is_given_between or x.requires_grad) and (ends := range_of(x)) is not None:
                    ranges.append(ends)
        self.trace.append(Entry(what, weakref.ref(who) if isinstance(who, nn.Module) else who, ranges))

    def see_gradients(self, root: nn.Module) -> bool:
        """Look at the gradients as the backward pass left them: clipping spreads a NaN over all of them.

        Returns:
            Whether all are finite.
        """
        self.spoilt, self._last = [], None
        norms = norms_of(p.grad for p in root.parameters() if p.grad is not None)
        if not all(map(math.isfinite, fetched(norms))):
            grads = {name: p.grad for name, p in root.named_parameters() if p.grad is not None}
            ranges = {name: ends for name, x in grads.items() if (ends := range_of(x, _SAMPLE)) is not None}
            self.spoilt = [
                name
                for name, ends in zip(ranges, read(list(ranges.values())), strict=True)
                if not is_finite(ends)
            ]
        return not self.spoilt


def _tensors(value: Any) -> Iterable[Tensor]:
    """Return the tensors in an output or in arguments: mostly one, and what it takes to search a tree is saved."""
    if type(value) is Tensor:
        return (value,)
    if type(value) is tuple and all(type(one) is Tensor for one in value):
        return value
    return (x for _, x in tensors_in(value))


def range_of(x: Tensor, most: int = _EXACT) -> Range | None:
    """Return the range of a tensor, NaN twice where there is one; None for one of a kind that is in no order.

    Of a small tensor it is a copy, twice, which `read` makes a range.

    Args:
        most: elements; of a tensor of more of them it is the range of an even sample.
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
    """Fetch numbers, with one transfer for each device and dtype."""
    ranges = [torch.aminmax(low) if low is high else (low, high) for low, high in ranges]
    ends = fetched([end for pair in ranges for end in pair])
    return list(zip(ends[::2], ends[1::2], strict=True))
