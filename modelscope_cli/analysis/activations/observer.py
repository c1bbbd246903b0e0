"""Statistics of the inputs and of the activations of every layer over any number of images, none of them stored."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver
from modelscope_cli.analysis.blocks.blocks import ForEachBlock
from modelscope_cli.analysis.outputs.degenerate import alike
from modelscope_cli.analysis.outputs.output_kinds import leaves_of, main_leaf
from modelscope_cli.analysis.statistics.moments import RANGE, Moments, Wanted
from modelscope_cli.analysis.statistics.quantiles import quantiles_of
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.errors import refuse_failed_device
from modelscope_cli.hooks.fetch import Deferred, joined, numbers
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.forward_signature import training_args
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.run import Args, Arguments, Kwargs
from modelscope_cli.records.stats import ActivationStats, Counts, InputStats


@dataclass(frozen=True, slots=True)
class ArgumentStats:
    """Statistics of one argument of the model, over one batch or several."""

    name: str | int  # a keyword, or a position from 0
    shape: tuple[int, ...]  # in the first batch
    dtype: str
    moments: Moments


def entered(args: Arguments) -> Deferred[tuple[ArgumentStats, ...]]:
    arguments = args[0] if isinstance(args, tuple) and isinstance(args[0], dict) else args
    tensors = [
        (name, tensor)
        for name, arg in (arguments.items() if isinstance(arguments, dict) else enumerate(arguments))
        for _, tensor in tensors_in(arg)
    ]
    return joined(reduce_tensor(tensor, None, RANGE) for _, tensor in tensors).then(
        lambda moments: tuple(
            ArgumentStats(name, tuple(tensor.shape), dtype_name(tensor.dtype), one)
            for (name, tensor), one in zip(tensors, moments, strict=True)
        )
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


Key = tuple[str, int, str]  # layer name, first call of the kind, path of the output


@dataclass(slots=True)
class Activation:
    """Statistics of one output of one call, or of all calls of its kind."""

    call: Call  # the first of them
    output: str
    shape: tuple[int, ...]
    dtype: str
    channels: int | None  # number of channels; None if there are none, or it varies between batches
    moments: Moments | None = None
    problem: str | None = None
    # By the call's index, in the first batch that has the call
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # By name, after the last batch; None if not requested
    quantiles: dict[str, float] | None = field(default=None, repr=False)

    @property
    def key(self) -> Key:
        return self.call.name, self.call.index, self.output

    def merge(self, later: "Activation") -> None:
        """Merge the statistics of a later batch; after the first problem, nothing is added."""
        for index, shape in later.shapes.items():
            self.shapes.setdefault(index, shape)
        if later.channels != self.channels:
            self.channels = None
        self.problem = self.problem or later.problem
        if self.problem or later.moments is None:
            return
        self.moments = self.moments.merge(later.moments) if self.moments else later.moments


def merge_into(merged: dict[Key, Activation], later: Iterable[Activation]) -> None:
    """Merge the statistics of a later batch; new outputs come last."""
    for activation in later:
        if activation.key in merged:
            merged[activation.key].merge(activation)
        else:
            merged[activation.key] = activation


class ActivationObserver(Observer):
    """Reduces every output of the observed calls to statistics; calls of one kind to one, unless `is_by_call`."""

    def __init__(self, wanted: Wanted, *, is_innermost_only: bool, is_by_call: bool = False) -> None:
        self.activations: dict[Key, Activation] = {}
        self._pending: list[tuple[Activation, Deferred[Moments]]] = []
        self._wanted = wanted
        self._is_innermost_only = is_innermost_only
        self._is_by_call = is_by_call
        self._channels = ChannelFinder()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        for path, tensor in tensors_in(output):
            channel_dim = self._channels.find(module, tensor)
            if is_innermost or not self._is_innermost_only:
                self._add(call, path, tensor, channel_dim)

    def pass_by(self, module: nn.Module, output: Any) -> None:
        self._channels.see(module, output)

    def _add(self, call: Call, path: str, tensor: Tensor, channel_dim: int | None) -> None:
        key = (call.name, call.index if self._is_by_call else call.like, path)
        shape = tuple(tensor.shape)
        channels = shape[channel_dim] if channel_dim is not None else None
        dtype = dtype_name(tensor.dtype)
        later = Activation(call, path, shape, dtype, channels, shapes={call.index: shape})
        activation = self.activations.setdefault(key, later)
        activation.merge(later)
        if activation.problem:
            return
        try:
            self._pending.append((activation, reduce_tensor(tensor, channel_dim, self._wanted)))
        except (TypeError, RuntimeError) as error:
            refuse_failed_device(error)
            # A tensor without statistics is reported in its row and does not end the run.
            activation.problem = in_one_line(error, 200)

    def settle(self) -> None:
        """Merge the moments of the passes so far."""
        self._settled()()

    def _settled(self) -> Deferred[None]:
        owners = [activation for activation, _ in self._pending]

        def merge(moments: list[Moments]) -> None:
            for activation, later in zip(owners, moments, strict=True):
                activation.moments = activation.moments.merge(later) if activation.moments else later

        pending = joined(one for _, one in self._pending).then(merge)
        self._pending = []
        return pending

    def take(self) -> Deferred[tuple[Activation, ...]]:
        """Return the gathered statistics, and reset them, so that batches are independent."""
        activations = tuple(self.activations.values())
        settled = self._settled().then(lambda _: activations)
        self.activations, self._channels = {}, ChannelFinder()
        return settled


@dataclass(frozen=True, slots=True)
class BatchCapture:
    """Statistics of one batch: of the model's inputs and the layers' outputs."""

    inputs: tuple[ArgumentStats, ...]
    outputs: tuple[Activation, ...]
    alike: tuple[bool, ...]  # whether the output is the same for all images; empty for one image


def observe_activations(
    model: nn.Module,
    over: ForEachBlock,
    selection: Selection,
    wanted: Wanted,
    *,
    interventions: Sequence[Intervention] = (),
    batch_norms: BatchNormObserver | None = None,
    family: str = "custom",
    entering: dict[str | int, ArgumentStats] | None = None,
    alikes: list[bool] | None = None,
) -> list[Activation]:
    """Run every batch and return the statistics of the activations, in execution order.

    Args:
        over: iterates over the batches, see `Blocks.over`.
        interventions: change values on the way.
        batch_norms: observes batch norms; with it, the model runs in train mode.
        family: as in `LoadedModel`; detection models need targets in train mode.
        entering: receives the statistics of the inputs.
        alikes: receives whether the output is the same for all images, of each batch of several.
    """
    observer = ActivationObserver(
        wanted, is_innermost_only=selection.is_innermost_only, is_by_call=selection.is_by_call
    )
    is_training = batch_norms is not None

    def see(batch: Batch) -> BatchCapture:
        output = session.run(training_args(model, family, batch.args) if is_training else batch.args)
        leaves = leaves_of(output) if alikes is not None and batch.n_images > 1 else ()
        scores = main_leaf(leaves)[1] if leaves else None
        found = () if scores is None or len(scores) != batch.n_images else (alike(scores, batch.args),)
        inputs: Deferred[Any] = entered(batch.args) if entering is not None else Deferred((), tuple)
        flags = numbers(found).then(lambda values: tuple(map(bool, values)))
        return BatchCapture(*joined([inputs, observer.take(), flags])())

    merged: dict[Key, Activation] = {}
    with HookSession(
        model,
        [observer, *([batch_norms] if batch_norms else [])],
        wanted=selection.wanted,
        names=selection.names,
        is_training=is_training,
        interventions=interventions,
    ) as session:
        for capture in over("activations", see, BatchCapture):
            if alikes is not None:
                alikes.extend(capture.alike)
            if entering is not None:
                merge_arguments(entering, capture.inputs)
            merge_into(merged, capture.outputs)
    for activation in merged.values():
        if activation.moments and activation.moments.values:
            activation.quantiles = quantiles_of(wanted.quantiles, activation.moments.values) or None
    return sorted(merged.values(), key=lambda activation: activation.call.order)


def to_rows(activations: Iterable[Activation]) -> tuple[ActivationStats, ...]:
    """Return statistics as rows, by the order in which their calls ran."""
    return tuple(map(to_row, sorted(activations, key=lambda activation: activation.call.order)))


def to_row(activation: Activation) -> ActivationStats:
    """Return statistics as a row; an output without finite values has only counts."""
    call, moments = activation.call, activation.moments
    row = ActivationStats(
        **call.fields,
        output=activation.output,
        shape=activation.shape,
        dtype=activation.dtype,
        numel=moments.numel if moments else 0,
        channels=activation.channels,
        problem=activation.problem,
        calls=len(activation.shapes),
        shapes=tuple(dict.fromkeys(activation.shapes.values())),
    )
    if activation.problem or moments is None:
        return row
    known: dict[str, Any] = {"nan_count": moments.n_nan, "inf_count": moments.n_inf}
    if moments.alive is not None:
        dead = tuple(channel for channel, is_alive in enumerate(moments.alive) if not is_alive)
        known |= {"dead_channels": len(dead), "dead_indices": dead}
    if not moments.n:
        return replace(row, **known, problem="no finite value" if moments.numel else "no elements")
    histogram = moments.histogram
    return replace(
        row,
        **known,
        mean=moments.mean,
        std=moments.std,
        min=moments.low,
        max=moments.high,
        rms=moments.rms,
        zero_fraction=None if moments.n_zero is None else moments.n_zero / moments.n,
        near_zero_fraction=None if moments.n_near_zero is None else moments.n_near_zero / moments.n,
        histogram=Counts(histogram.edges, histogram.counts, histogram.is_sampled) if histogram else None,
        quantiles=activation.quantiles,
    )
