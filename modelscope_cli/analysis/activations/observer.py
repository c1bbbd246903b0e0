"""`stats`: what the activations of every layer look like, over any number of images, keeping none of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver
from modelscope_cli.analysis.activations.entering import Entered, Entering, entered
from modelscope_cli.analysis.blocks.in_order import Over
from modelscope_cli.analysis.statistics.correlation import Comoments
from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import abs_deviation, reduce_tensor
from modelscope_cli.hooks.channels import ChannelFinder
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.detection_targets import training_args
from modelscope_cli.records.stats import ActivationStats, Counts, Redundancy

Key = tuple[str, int, str]  # layer name, call, path of the output


@dataclass(slots=True)
class Activation:
    """What has been gathered about one output of one call.

    Attributes:
        channels: None where there are none, or not as many in every batch.
        comoments: sums for the correlation between channels; None where it was not asked for.
        pending: moments of the current pass, still on the device.
    """

    call: Call
    output: str
    shape: tuple[int, ...]
    dtype: str
    channels: int | None
    moments: Moments | None = None
    problem: str | None = None
    comoments: Comoments | None = field(default=None, repr=False)
    pending: list[Callable[[], Moments]] = field(default_factory=list, repr=False)

    @property
    def key(self) -> "Key":
        return self.call.name, self.call.index, self.output

    def correlation(self) -> Tensor | None:
        """Return the `(C, C)` correlation of the channels, None where it was not gathered."""
        return self.comoments.correlation() if self.comoments else None

    def settle(self) -> None:
        """Merge what the pass brought; on an accelerator this is where the numbers come over."""
        for finish in self.pending:
            moments = finish()
            self.moments = self.moments.merge(moments) if self.moments else moments
        self.pending.clear()
        if self.comoments:
            self.comoments.settle()

    def merge(self, later: "Activation") -> None:
        """Take in what a later batch brought; from the first problem on, nothing more."""
        if later.channels != self.channels:
            self.channels = self.comoments = None
        self.problem = self.problem or later.problem
        if self.problem or later.moments is None:
            return
        self.moments = self.moments.merge(later.moments) if self.moments else later.moments
        if self.comoments and later.comoments:
            self.comoments.merge(later.comoments)


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

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if self._is_innermost_only and not is_innermost:
            return
        for path, tensor in tensors_in(output):
            self._add(call, path, tensor, self._channels.find(module, tensor))

    def pass_by(self, module: nn.Module, output: Any) -> None:
        self._channels.see(module, output)

    def _add(self, call: Call, path: str, tensor: Tensor, channel_dim: int | None) -> None:
        activation = self.activations.get((call.name, call.index, path))
        shape = tuple(tensor.shape)
        channels = shape[channel_dim] if channel_dim is not None else None
        if activation is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            activation = Activation(call, path, shape, dtype, channels)
            self.activations[call.name, call.index, path] = activation
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
            activation.problem = " ".join(str(error).split())[:200]

    def settle(self) -> None:
        for activation in self.activations.values():
            activation.settle()

    def take(self) -> tuple[Activation, ...]:
        """Return what has been gathered, and begin anew: of a batch nothing depends on those before it."""
        self.settle()
        taken = tuple(self.activations.values())
        self.activations, self._channels = {}, ChannelFinder()
        return taken


class _DeviationObserver(Observer):
    """The second pass: sums |x - mean| now that the mean over all images is known."""

    def __init__(self, first: Mapping[Key, Activation]) -> None:
        self._first = first
        self._sums: dict[Key, float | Tensor] = {}

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        for path, tensor in tensors_in(output):
            key = (call.name, call.index, path)
            activation = self._first.get(key)
            if activation and activation.moments and not activation.problem:
                self._sums[key] = self._sums.get(key, 0.0) + abs_deviation(tensor, activation.moments.mean)

    def take(self) -> tuple[float, ...]:
        """Return the sums of a batch, in the order of the activations, and begin anew."""
        taken = tuple(float(self._sums.get(key, 0.0)) for key in self._first)
        self._sums = {}
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
) -> list[Activation]:
    """Run every batch once and return what the activations were, in execution order.

    The mean absolute deviation needs the mean of all images, so more than one batch is run a second time
    where it is wanted.

    Args:
        over: goes through the batches, the same each time; see `Blocks.over`, and `in_turn` of a list of them.
        interventions: change what flows, in both passes.
        batch_norms: where given, the model runs in train mode, and this looks at its batch norms too.
        family: as in `LoadedModel`; detection models need something to find in train mode.
        entering: takes in what enters the model.

    Raises:
        ForwardError: the model raised (exit 4).
    """
    observer = ActivationObserver(
        wanted, is_innermost_only=selection.is_innermost_only, with_correlation=with_correlation
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
    n_batches = 0
    with open_session(observer, *([batch_norms] if batch_norms else [])) as session:
        for seen in over("activations", see, Seen):
            n_batches += 1
            if entering is not None:
                entering.merge(seen.inputs)
            for activation in seen.outputs:
                if activation.key in merged:
                    merged[activation.key].merge(activation)
                else:
                    merged[activation.key] = activation
    if wanted.mad and n_batches > 1:
        _add_deviations(merged, over, open_session, run, interventions)
    return sorted(merged.values(), key=lambda activation: activation.call.order)


def _add_deviations(
    merged: Mapping[Key, Activation],
    over: Over,
    open_session: Callable[[Observer], HookSession],
    run: Callable[[HookSession, Batch], None],
    interventions: Sequence[Intervention],
) -> None:
    """Run everything again for the mean absolute deviation, now that the means are known."""
    second = _DeviationObserver(merged)
    for intervention in interventions:
        intervention.repeat()

    def deviate(batch: Batch) -> tuple[float, ...]:
        run(session, batch)
        return second.take()

    sums = [0.0] * len(merged)
    with open_session(second) as session:
        for part in over("mean absolute deviation", deviate, tuple[float, ...]):
            sums = [total + more for total, more in zip(sums, part, strict=True)]
    for activation, total in zip(merged.values(), sums, strict=True):
        if activation.moments:
            activation.moments = replace(activation.moments, abs_deviation=total)


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
        row = replace(row, dead_channels=moments.alive.count(False))
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
