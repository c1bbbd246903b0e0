"""`stats`: what the activations of every layer look like, over any number of images, keeping none of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.activation import Activation, Key, merge_into
from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver
from modelscope_cli.analysis.activations.entering import Entered, Entering, entered
from modelscope_cli.analysis.activations.lineage import Lineage
from modelscope_cli.analysis.activations.second_pass import Again, SecondPass, complete, merge_all
from modelscope_cli.analysis.blocks.in_order import Over
from modelscope_cli.analysis.statistics.correlation import Comoments
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.forward_signature import training_args
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.stats import ActivationStats, Counts, Redundancy


class ActivationObserver(Observer):
    """Reduces every output of the calls it sees.

    Args:
        wanted: which figures.
        is_innermost_only: leave out calls inside which other layers ran: their outputs are those layers' too.
        with_correlation: gather the correlation between channels.
    """

    def __init__(self, wanted: Wanted, *, is_innermost_only: bool, with_correlation: bool = False) -> None:
        self.activations: dict[Key, Activation] = {}
        self._wanted = wanted
        self._is_innermost_only = is_innermost_only
        self._with_correlation = with_correlation
        self._channels = ChannelFinder()
        self._lineage = Lineage()

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._wanted.channels:
            self._lineage.enter(call, module, (args, kwargs))

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if self._is_innermost_only and not is_innermost:
            return
        for path, tensor in tensors_in(output):
            self._add(call, path, tensor, self._channels.find(module, tensor))

    def pass_by(self, module: nn.Module, output: Any) -> None:
        self._channels.see(module, output)

    def _add(self, call: Call, path: str, tensor: Tensor, channel_dim: int | None) -> None:
        key = (call.name, call.index, path)
        activation = self.activations.get(key)
        source = self._lineage.leave(key, tensor) if self._wanted.channels else None
        shape = tuple(tensor.shape)
        channels = shape[channel_dim] if channel_dim is not None else None
        if activation is None:
            dtype = dtype_name(tensor.dtype)
            activation = Activation(call, path, shape, dtype, channels, source=source)
            self.activations[key] = activation
        if source != activation.source:
            activation.source = None
        if channels != activation.channels:
            activation.channels = activation.comoments = None
        if activation.problem:
            return
        try:
            activation.pending.append(reduce_tensor(tensor, channel_dim, self._wanted))
            if self._with_correlation and channel_dim is not None and activation.channels is not None:
                activation.comoments = activation.comoments or Comoments()
                activation.comoments.add(tensor, channel_dim)
        except (TypeError, RuntimeError, NotImplementedError) as error:
            # One tensor without statistics is a row that says so, never the end of the run.
            activation.problem = in_one_line(error, 200)

    def settle(self) -> None:
        for activation in self.activations.values():
            activation.settle()

    def take(self) -> tuple[Activation, ...]:
        """Return what has been gathered, and begin anew: of a batch nothing depends on those before it."""
        self.settle()
        taken = tuple(self.activations.values())
        self.activations, self._channels, self._lineage = {}, ChannelFinder(), Lineage()
        return taken


@dataclass(frozen=True, slots=True)
class Seen:
    """What one batch shows: everything that goes into the model, and everything its layers put out."""

    inputs: tuple[Entered, ...]
    outputs: tuple[Activation, ...]


def observe_activations(
    model: nn.Module,
    over: Over,
    selection: Selection,
    wanted: Wanted,
    *,
    with_correlation: bool = False,
    interventions: Sequence[Intervention] = (),
    batch_norms: BatchNormObserver | None = None,
    family: str = "custom",
    entering: Entering | None = None,
    n_batches: int | None = None,
) -> list[Activation]:
    """Run every batch once and return what the activations were, in execution order.

    The mean absolute deviation needs the mean of all images, and a quantile the bucket it lies in, so where they
    are wanted every batch is run a second time; for the deviation alone only where there are several.

    Args:
        over: goes through the batches, the same each time; see `Blocks.over`.
        interventions: change what flows, in both passes.
        batch_norms: where given, the model runs in train mode, and this looks at its batch norms too.
        family: as in `LoadedModel`; detection models need something to find in train mode.
        entering: takes in what enters the model.
        n_batches: where it is known; of several, the first pass leaves out what only the second can tell.

    Raises:
        ForwardError: the model raised (exit 4).
    """
    at_first = replace(wanted, mad=wanted.mad and n_batches in (None, 1))
    observer = ActivationObserver(
        at_first, is_innermost_only=selection.is_innermost_only, with_correlation=with_correlation
    )
    is_training = batch_norms is not None

    def open_session(*observers: Observer) -> HookSession:
        wanted, names = selection.wanted, selection.names
        return HookSession(
            model,
            observers,
            wanted=wanted,
            names=names,
            is_training=is_training,
            interventions=interventions,
        )

    def run(session: HookSession, batch: Batch) -> None:
        session.run(training_args(model, family, batch.args) if is_training else batch.args)

    def see(batch: Batch) -> Seen:
        run(session, batch)
        return Seen(entered(batch.args) if entering is not None else (), observer.take())

    merged: dict[Key, Activation] = {}
    with open_session(observer, *([batch_norms] if batch_norms else [])) as session:
        for seen in over("activations", see, Seen):
            if entering is not None:
                entering.merge(seen.inputs)
            merge_into(merged, seen.outputs)
    second = SecondPass(merged, wanted)

    def look_again(batch: Batch) -> tuple[Again, ...]:
        run(session, batch)
        return second.take()

    again: Sequence[Again] = [Again(0.0, {})] * len(merged)
    if second.is_needed:
        for intervention in interventions:
            intervention.repeat()
        with open_session(second) as session:
            parts = over("second pass", look_again, tuple[Again, ...])
            again = reduce(merge_all, parts)
    for activation, more in zip(merged.values(), again, strict=True):
        complete(activation, more, wanted)
    return sorted(merged.values(), key=lambda activation: activation.call.order)


def to_rows(activations: Collection[Activation]) -> tuple[ActivationStats, ...]:
    """Turn what was gathered into rows; of dead channels they say how many were dead in an earlier row already."""
    rows = {activation.key: to_row(activation) for activation in activations}
    sources = {activation.key: activation.source for activation in activations}
    return tuple(_with_inherited(row, rows.get(sources[key] or key)) for key, row in rows.items())


def _with_inherited(row: ActivationStats, source: ActivationStats | None) -> ActivationStats:
    if row.dead_indices is None:
        return row
    is_its_own = source is None or source is row or source.channels != row.channels
    inherited = (
        0 if is_its_own or source is None else len({*row.dead_indices} & {*(source.dead_indices or ())})
    )
    return replace(row, dead_inherited=inherited)


def to_row(activation: Activation) -> ActivationStats:
    """Turn what was gathered into a row; an output without finite values keeps its counts and nothing else."""
    call, moments = activation.call, activation.moments
    row = ActivationStats(
        name=call.name,
        type=call.type,
        order=call.order,
        call=call.index,
        output=activation.output,
        shape=activation.shape,
        dtype=activation.dtype,
        numel=moments.numel if moments else 0,
        channels=activation.channels,
        problem=activation.problem,
    )
    if activation.problem or moments is None:
        return row
    row = replace(row, nan_count=moments.n_nan, inf_count=moments.n_inf)
    if moments.alive is not None:
        dead = tuple(channel for channel, is_alive in enumerate(moments.alive) if not is_alive)
        row = replace(row, dead_channels=len(dead), dead_indices=dead, channel_zeros=moments.channel_zeros)
    if not moments.n:
        return replace(row, problem="no finite value" if moments.numel else "no elements")
    histogram = moments.histogram
    return replace(
        row,
        mean=moments.mean,
        std=moments.std,
        mad=moments.mad,
        min=moments.low,
        max=moments.high,
        rms=moments.rms,
        zero_fraction=None if moments.n_zero is None else moments.n_zero / moments.n,
        near_zero_fraction=None if moments.n_near_zero is None else moments.n_near_zero / moments.n,
        histogram=Counts(histogram.edges, histogram.counts, histogram.is_sampled) if histogram else None,
        correlation=_redundancy(activation.correlation()),
        quantiles=activation.quantiles,
    )


def _redundancy(matrix: Tensor | None) -> Redundancy | None:
    if matrix is None:
        return None
    varied = ~matrix.diagonal().isnan()
    n = int(varied.sum())
    if n < 2:
        return Redundancy(None, n)
    kept = matrix[varied][:, varied].abs()
    return Redundancy(float((kept.sum() - torch.trace(kept)) / (n * (n - 1))), n)
