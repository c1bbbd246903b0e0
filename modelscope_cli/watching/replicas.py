"""Checksums of weights, which show whether the ranks of a run hold the same, and how gradients are averaged.

Nothing is sent: each rank writes checksums to its own log, at recorded steps and at the end, and they are compared
when the logs are read.
"""

import functools
import weakref
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelscope_cli.source_location import place_of_caller
from modelscope_cli.watching.error_isolation import after, replaced
from modelscope_cli.watching.parameters import held_here, is_sharded, norm_of, parameters_of

_COLUMNS = 1024  # sums that represent a large parameter
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element


@dataclass(slots=True)
class ReplicaReport:
    """Checksums of one recorded step, to compare ranks."""

    # Forward passes through DistributedDataParallel since the start: with averaged gradients, and inside
    # `no_sync()`; and whether its hooks were lost
    passes: tuple[int, int, bool]
    # A checksum, a sum with random signs, and a norm of each parameter before the step
    weights: list[tuple[int, float, float]]


@dataclass(slots=True)
class _Parallel:
    """A DistributedDataParallel, and the parameters that it averages, as of its creation."""

    module: "weakref.ref[nn.Module]"
    made: str | None
    group: list[int]
    averaged: list["weakref.ref[Tensor]"]
    ignored: set[str]
    passes: list[int] = field(default_factory=lambda: [0, 0])  # as in `ReplicaReport`
    first: Tensor | None = None  # the first parameter
    accumulator: Any = None  # of its gradient, with the hook

    @property
    def is_over(self) -> bool:
        """Whether it was used and then deleted, so that the ranks may train separately."""
        return self.module() is None and any(self.passes)

    @property
    def has_lost_hooks(self) -> bool:
        """Whether a move or a cast has replaced the gradient accumulators, and so removed the hooks."""
        first = self.first
        return first is not None and first.requires_grad and _accumulator(first) is not self.accumulator


class ReplicaWatch:
    """Takes checksums in one of several processes."""

    def __init__(self) -> None:
        # By the wrapped module, whose copies should be equal even if it is run without the wrapper.
        self._parallel: weakref.WeakKeyDictionary[nn.Module, _Parallel] = weakref.WeakKeyDictionary()
        self._by_optimizer: dict[tuple[str, int], list[_Parallel]] = {}
        # Before the step that runs, if it is recorded
        self._weights: list[tuple[int, float, float]] | None = None
        self._optimizers: dict[str, weakref.ref[Optimizer]] = {}  # by label

    def installed(self, guard: Callable[..., None]) -> AbstractContextManager[None]:
        """Register every DistributedDataParallel created while open."""
        return replaced(after(nn.parallel.DistributedDataParallel, lambda module: guard(self._made, module)))

    def _made(self, module: Any) -> None:
        ignored = module.parameters_to_ignore
        averaged = [
            p for name, p in module.module.named_parameters() if p.requires_grad and name not in ignored
        ]
        earlier = self._parallel.get(module.module)
        self._by_optimizer.clear()
        self._parallel[module.module] = one = _Parallel(
            module=weakref.ref(module),
            made=place_of_caller(),
            group=torch.distributed.get_process_group_ranks(module.process_group),
            averaged=[weakref.ref(p) for p in averaged],
            ignored=set(ignored),
            passes=[0, 0] if earlier is None else earlier.passes,
        )
        if averaged:
            one.first = averaged[0]
            one.accumulator = _accumulator(one.first)

    def see_pass(self, module: nn.Module) -> None:
        """Count a forward pass with gradients through a DistributedDataParallel."""
        if isinstance(module, nn.parallel.DistributedDataParallel) and torch.is_grad_enabled():
            one = self._parallel.get(module.module)
            if one is not None:
                one.passes[not module.require_backward_grad_sync] += 1

    def before_step(self, optimizer: Optimizer, is_recorded: bool) -> None:
        parameters = parameters_of(optimizer) if is_recorded else ()
        self._weights = [(_checksum(p), *_signed_sum(p)) for p in parameters] if is_recorded else None

    def after_step(self, optimizer: Optimizer, label: str) -> ReplicaReport | None:
        """Return the checksums of a step; None if it is not recorded."""
        self._optimizers[label] = weakref.ref(optimizer)
        if self._weights is None:
            return None
        wrappers = list(self._parallel.values())
        if (label, len(wrappers)) not in self._by_optimizer:
            held = {*map(id, parameters_of(optimizer))}
            own = [one for one in wrappers if not held.isdisjoint(id(ref()) for ref in one.averaged)]
            self._by_optimizer[label, len(wrappers)] = own or wrappers  # all if none holds a known one
        wrappers = self._by_optimizer[label, len(wrappers)]
        averaged, alone = (sum(one.passes[n] for one in wrappers) for n in (0, 1))
        return ReplicaReport((averaged, alone, any(one.has_lost_hooks for one in wrappers)), self._weights)

    def last_checksums(self) -> dict[str, dict[int, int]]:
        """Return checksums after the last step, by optimizer and index of the parameter."""
        optimizers = {label: one for label, ref in self._optimizers.items() if (one := ref()) is not None}
        return {
            label: {n: _checksum(p) for n, p in enumerate(parameters_of(one)) if not is_sharded(p)}
            for label, one in optimizers.items()
        }

    def origin(self, parameter: Tensor) -> dict[str, Any]:
        """Return the ranks that average a parameter, and the line that made its wrapper; else nothing."""
        for module, one in self._parallel.items():
            name = next((name for name, p in module.named_parameters() if p is parameter), None)
            if name is not None and name not in one.ignored and not one.is_over:
                return {"group": one.group, "made": one.made}
        return {}


def _accumulator(parameter: Tensor) -> Any:
    with torch.enable_grad():
        node = parameter.view_as(parameter).grad_fn
    return node.next_functions[0][0] if node is not None else None


def _values(parameter: Tensor) -> Tensor:
    values = held_here(parameter)
    return (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)


def _bytes(x: Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes() if x.numel() else b""


def _checksum(parameter: Tensor) -> int:
    """Return a checksum of every bit; of a large parameter, of its column sums, computed on its device."""
    with torch.no_grad():
        values = _values(parameter)
        bits = values.contiguous().view(_BITS[values.dtype.itemsize])
        n = bits.numel() // _COLUMNS * _COLUMNS
        if n <= 4 * _COLUMNS:
            return zlib.crc32(_bytes(bits.cpu()))
        sums = bits[:n].view(-1, _COLUMNS).sum(0, dtype=torch.int64)
        return zlib.crc32(_bytes(sums.cpu()), zlib.crc32(_bytes(bits[n:].cpu())))


def _signed_sum(parameter: Tensor) -> tuple[float, float]:
    """Return the sum of an even sample with random signs, and the norm of the sample.
    The sums of two ranks differ by about the norm of the difference between their samples."""
    with torch.no_grad():
        values = _values(parameter)
        values = values[:: values.numel() // _COLUMNS + 1].cpu().double()
        return float(values @ _signs()[: values.numel()]), float(norm_of(values))


@functools.cache
def _signs() -> Tensor:
    return torch.randint(2, (_COLUMNS + 1,), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
