"""Statistics of a model's inputs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn

from modelscope_cli.analysis.statistics.moments import RANGE, Moments
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.run import Args, Arguments, Kwargs
from modelscope_cli.records.stats import InputStats


@dataclass(frozen=True, slots=True)
class ArgumentStats:
    """Statistics of one argument of the model, over one batch or several."""

    name: str | int  # a keyword, or a position from 0
    shape: tuple[int, ...]  # in the first batch
    dtype: str
    moments: Moments


def entered(args: Arguments) -> tuple[ArgumentStats, ...]:
    arguments = args[0] if isinstance(args, tuple) and isinstance(args[0], dict) else args
    return tuple(
        ArgumentStats(
            name, tuple(tensor.shape), dtype_name(tensor.dtype), reduce_tensor(tensor, None, RANGE)()
        )
        for name, arg in (arguments.items() if isinstance(arguments, dict) else enumerate(arguments))
        for _, tensor in tensors_in(arg)
    )


def merge_arguments(arguments: dict[str | int, ArgumentStats], batch: Iterable[ArgumentStats]) -> None:
    """Add the statistics of a batch to those of all arguments so far, by name."""
    for part in batch:
        before = arguments.get(part.name)
        moments = before.moments.merge(part.moments) if before else part.moments
        arguments[part.name] = replace(before or part, moments=moments)


def to_input_row(argument: ArgumentStats) -> InputStats:
    """Return statistics as a row; an argument without finite values has only counts."""
    moments = argument.moments
    row = InputStats(
        shape=argument.shape,
        dtype=argument.dtype,
        numel=moments.numel,
        nan_count=moments.n_nan,
        inf_count=moments.n_inf,
        name=argument.name if isinstance(argument.name, str) else "",
    )
    if not moments.n:
        return row
    return replace(
        row, mean=moments.mean, std=moments.std, min=moments.low, max=moments.high, rms=moments.rms
    )


def rms_at_first_weights(model: nn.Module, args: Arguments) -> float | None:
    """Return the root mean square of the input of the first layer with parameters; None if that layer is a norm or
    has no float input. It differs from the model's input where the model preprocesses it."""
    first = _FirstWeights()
    with HookSession(model, [first]) as session:
        session.run(args)
    return first.rms


class _FirstWeights(Observer):
    def __init__(self) -> None:
        self.rms: float | None = None
        self._is_seen = False

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        is_leaf = next(module.children(), None) is None
        if self._is_seen or not is_leaf or next(module.parameters(recurse=False), None) is None:
            return
        self._is_seen = True
        floats = [tensor for _, tensor in tensors_in((args, kwargs)) if tensor.is_floating_point()]
        if floats and "Norm" not in call.type:
            self.rms = float(torch.linalg.vector_norm(floats[0].detach().float())) / floats[0].numel() ** 0.5
