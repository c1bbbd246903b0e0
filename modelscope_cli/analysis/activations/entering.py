"""What enters a model, before any layer of it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.observer import Batch
from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.records.run import Arguments
from modelscope_cli.records.stats import InputStats

_RANGE = Wanted(mad=False, zero=False, near_zero=False, channels=False, histogram=False)


class Entering:
    """Statistics of every argument of a model, over all batches; none of them is kept."""

    def __init__(self) -> None:
        self._seen: dict[str | int, tuple[Tensor, Moments]] = {}

    def track(
        self, passes: Callable[[Iterable[Batch], str], Iterator[Batch]]
    ) -> Callable[[Iterable[Batch], str], Iterator[Batch]]:
        """Return what goes through batches as `passes` does, and looks at them on the first way."""

        def through(batches: Iterable[Batch], what: str) -> Iterator[Batch]:
            is_first = not self._seen
            for batch in passes(batches, what):
                if is_first:
                    self.add(batch.args)
                yield batch

        return through

    def add(self, args: Arguments) -> None:
        """Take the arguments of one forward; a list of images of several sizes is one input."""
        given = args[0] if isinstance(args, tuple) and isinstance(args[0], dict) else args
        for name, arg in given.items() if isinstance(given, dict) else enumerate(given):
            for _, tensor in tensors_in(arg):
                moments = reduce_tensor(tensor, None, _RANGE)()
                first, before = self._seen.get(name, (tensor.new_empty(tensor.shape, device="meta"), None))
                self._seen[name] = first, before.merge(moments) if before else moments

    def rows(self) -> tuple[InputStats, ...]:
        """Return one row an argument."""
        return tuple(
            replace(_to_row(*seen), name=name if isinstance(name, str) else "")
            for name, seen in self._seen.items()
        )


def _to_row(first: Tensor, moments: Moments) -> InputStats:
    row = InputStats(tuple(first.shape), str(first.dtype).removeprefix("torch."), moments.numel)
    if not moments.n:
        return InputStats(row.shape, row.dtype, row.numel, nan_count=moments.n_nan, inf_count=moments.n_inf)
    return InputStats(
        shape=row.shape,
        dtype=row.dtype,
        numel=row.numel,
        mean=moments.mean,
        std=moments.std,
        min=moments.low,
        max=moments.high,
        rms=moments.rms,
        nan_count=moments.n_nan,
        inf_count=moments.n_inf,
    )


def rms_at_first_weights(model: nn.Module, args: Arguments) -> float | None:
    """Return the root mean square of what enters the first layer with parameters, for a model may prepare its input
    by itself; None where that layer is a norm, or is not called with floats."""
    first = _FirstWeights()
    with HookSession(model, [first]) as session:
        session.run(args)
    return first.rms


class _FirstWeights(Observer):
    def __init__(self) -> None:
        self.rms: float | None = None
        self._is_seen = False

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_leaf = next(module.children(), None) is None
        if self._is_seen or not is_leaf or next(module.parameters(recurse=False), None) is None:
            return
        self._is_seen = True
        floats = [tensor for _, tensor in tensors_in((args, kwargs)) if tensor.is_floating_point()]
        if floats and "Norm" not in call.type:
            self.rms = float(torch.linalg.vector_norm(floats[0].detach().float())) / floats[0].numel() ** 0.5
