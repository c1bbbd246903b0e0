"""Where a pass stops being finite, and which sigmoids are saturated."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.health.weights import all_finite
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.records.check_evidence import CallFlow

# A unit is saturated where its derivative is below this share of the greatest.
_FLAT = 0.01


@dataclass(frozen=True, slots=True)
class Flowed:
    """What was seen of one call, in one batch or in several.

    Attributes:
        produces: whether finite inputs gave an output that is not, in any batch. `is_finite`: every output.
    """

    call: Call
    produces: bool
    is_finite: bool
    n_saturated: int
    n_values: int

    def merge(self, later: "Flowed") -> "Flowed":
        return replace(
            self,
            produces=self.produces or later.produces,
            is_finite=self.is_finite and later.is_finite,
            n_saturated=self.n_saturated + later.n_saturated,
            n_values=self.n_values + later.n_values,
        )

    def row(self) -> CallFlow:
        """Return it as a row."""
        return CallFlow(
            name=self.call.name,
            type=self.call.type,
            order=self.call.order,
            call=self.call.index,
            depth=self.call.depth,
            produces=self.produces,
            is_finite=self.is_finite,
            saturated_fraction=self.n_saturated / self.n_values if self.n_values else None,
        )


@dataclass(slots=True)
class _Entry:
    call: Call
    # Of this batch, still on the device.
    finite_in: Tensor
    finite_out: Tensor | None = None  # a forward that raised has no output
    n_saturated: list[Tensor] = field(default_factory=list)
    n_values: int = 0


class FlowObserver(Observer):
    """Notes for every call whether its inputs and its output were finite."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _Entry] = {}

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._entries[call.name, call.index] = _Entry(call, _all_finite(_floats((args, kwargs))))

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        entry = self._entries[call.name, call.index]
        outputs = _floats(output)
        entry.finite_out = _all_finite(outputs)
        for tensor in outputs:
            flat = _flat_units(module, tensor.detach())
            if flat is not None:
                entry.n_saturated.append(torch.count_nonzero(flat))
                entry.n_values += tensor.numel()

    def take(self) -> tuple[Flowed, ...]:
        """Return what a batch showed, and begin anew; on an accelerator this is where the numbers come over."""
        entries, self._entries = self._entries, {}
        return tuple(map(_settled, entries.values()))


def _settled(entry: _Entry) -> Flowed:
    has_output = entry.finite_out is not None
    is_finite = not has_output or bool(entry.finite_out)
    n_saturated = sum(int(n) for n in entry.n_saturated)
    return Flowed(entry.call, bool(entry.finite_in) and not is_finite, is_finite, n_saturated, entry.n_values)


def _floats(value: Any) -> list[Tensor]:
    return [
        tensor
        for _, tensor in tensors_in(value)
        if tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_quantized
    ]


def _all_finite(tensors: Sequence[Tensor]) -> Tensor:
    flags = [all_finite(tensor) for tensor in tensors]
    return torch.stack(flags).all() if flags else torch.tensor(True)


def _flat_units(module: nn.Module, output: Tensor) -> Tensor | None:
    """Return where the derivative is next to nothing: y (1 - y) of a sigmoid, 1 - y^2 of a tanh."""
    if isinstance(module, nn.Sigmoid):
        return 4 * output * (1 - output) < _FLAT
    return 1 - output.square() < _FLAT if isinstance(module, nn.Tanh) else None
