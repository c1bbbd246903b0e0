"""Where a pass stops being finite, and which sigmoids are saturated."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.health.weights import all_finite
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.records.evidence import CallFlow

# A unit is saturated where its derivative is below this share of the greatest.
_FLAT = 0.01


@dataclass(slots=True)
class _Entry:
    call: Call
    # One a batch, still on the device.
    finite_in: list[Tensor] = field(default_factory=list)
    finite_out: list[Tensor] = field(default_factory=list)
    n_saturated: list[Tensor] = field(default_factory=list)
    n_values: int = 0


class FlowObserver(Observer):
    """Notes for every call whether its inputs and its output were finite."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _Entry] = {}

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entry = self._entries.setdefault((call.name, call.index), _Entry(call))
        entry.finite_in.append(_all_finite(_floats((args, kwargs))))

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        entry = self._entries[call.name, call.index]
        outputs = _floats(output)
        entry.finite_out.append(_all_finite(outputs))
        for tensor in outputs:
            flat = _flat_units(module, tensor.detach())
            if flat is not None:
                entry.n_saturated.append(torch.count_nonzero(flat))
                entry.n_values += tensor.numel()

    def rows(self) -> tuple[CallFlow, ...]:
        """Return one row a call, in execution order; on an accelerator this is where the numbers come over."""
        return tuple(_to_row(entry) for entry in sorted(self._entries.values(), key=lambda e: e.call.order))


def _to_row(entry: _Entry) -> CallFlow:
    # A batch whose forward raised has no output.
    batches = [
        (bool(before), bool(after)) for before, after in zip(entry.finite_in, entry.finite_out, strict=False)
    ]
    n_saturated = sum(int(n) for n in entry.n_saturated)
    return CallFlow(
        name=entry.call.name,
        type=entry.call.type,
        order=entry.call.order,
        call=entry.call.index,
        depth=entry.call.depth,
        produces=any(before and not after for before, after in batches),
        is_finite=all(after for _, after in batches),
        saturated_fraction=n_saturated / entry.n_values if entry.n_values else None,
    )


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
