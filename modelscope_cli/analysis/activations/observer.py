"""Statistics of the inputs and of the activations of every layer over any number of images, none of them stored."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver
from modelscope_cli.analysis.blocks.blocks import ForEachBlock
from modelscope_cli.analysis.statistics.moments import RANGE, Moments, Wanted
from modelscope_cli.analysis.statistics.quantiles import SHORT, ValueCounts, buckets_of, quantiles_of
from modelscope_cli.analysis.statistics.reduce import abs_deviation, reduce_tensor, trailing_counts
from modelscope_cli.errors import refuse_failed_device
from modelscope_cli.hooks.fetch import Deferred, joined
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.hooks.torch_private import version_of
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


Key = tuple[str, int, str]  # layer name, call, path of the output


@dataclass(slots=True)
class Activation:
    """Statistics of one output of one call."""

    call: Call
    output: str
    shape: tuple[int, ...]
    dtype: str
    channels: int | None  # number of channels; None if there are none, or it varies between batches
    moments: Moments | None = None
    # The output whose channels the layer passes on in every batch; None if they are its own
    source: Key | None = None
    problem: str | None = None
    # By name, after the last batch; None if not requested
    quantiles: dict[str, float] | None = field(default=None, repr=False)

    @property
    def key(self) -> Key:
        return self.call.name, self.call.index, self.output

    def merge(self, later: "Activation") -> None:
        """Merge the statistics of a later batch; after the first problem, nothing is added."""
        if later.channels != self.channels:
            self.channels = None
        if later.source != self.source:
            self.source = None
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


@dataclass(frozen=True, slots=True)
class SecondPassSums:
    """Sums of the second pass for one output; merged in the order of the batches."""

    abs_deviation: float  # sum of |x - mean|; 0 if not needed
    trailing: dict[int, ValueCounts]  # trailing digits of the values, by bucket

    def merge(self, later: "SecondPassSums") -> "SecondPassSums":
        return SecondPassSums(
            self.abs_deviation + later.abs_deviation,
            {bucket: tally.merge(later.trailing[bucket]) for bucket, tally in self.trailing.items()},
        )


def merge_all(
    before: Sequence[SecondPassSums], later: Sequence[SecondPassSums]
) -> tuple[SecondPassSums, ...]:
    """Merge the sums of two batches, output by output."""
    return tuple(earlier.merge(new) for earlier, new in zip(before, later, strict=True))


@dataclass(frozen=True, slots=True)
class _Missing:
    """What to gather of one output: |x - `centre`| unless None, and trailing digits in the `buckets`."""

    centre: float | None
    buckets: tuple[int, ...]

    def __bool__(self) -> bool:
        return self.centre is not None or bool(self.buckets)


class SecondPass(Observer):
    """Gathers what needs the results of the first pass. `first`: these results, merged over all batches."""

    def __init__(self, first: Mapping[Key, Activation], wanted: Wanted) -> None:
        self._wanted = wanted
        self._missing = {key: _missing(activation, wanted) for key, activation in first.items()}
        self._begin()

    @property
    def is_needed(self) -> bool:
        return any(self._missing.values())

    def _begin(self) -> None:
        # Of the current batch, still on the device
        self._sums: dict[Key, float | Tensor] = {}
        self._digits: dict[Key, dict[int, Tensor]] = {}

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        for path, tensor in tensors_in(output):
            key = (call.name, call.index, path)
            missing = self._missing.get(key)
            if not missing:
                continue
            if missing.centre is not None:
                self._sums[key] = self._sums.get(key, 0.0) + abs_deviation(tensor, missing.centre)
            digits = self._digits.setdefault(key, {})
            for bucket, counts in trailing_counts(tensor, missing.buckets).items():
                digits[bucket] = digits[bucket] + counts if bucket in digits else counts

    def take(self) -> tuple[SecondPassSums, ...]:
        """Return the sums of a batch, in the order of the activations, and reset them."""
        taken = joined(self._taken(key, missing) for key, missing in self._missing.items())()
        self._begin()
        return tuple(taken)

    def _taken(self, key: Key, missing: _Missing) -> Deferred[SecondPassSums]:
        digits, total = self._digits.get(key, {}), self._sums.get(key, 0.0)
        total = total if isinstance(total, Tensor) else torch.tensor(total, dtype=torch.float64)

        def finish(total: Tensor, *counts: Tensor) -> SecondPassSums:
            tallies = [ValueCounts.of(one) for one in counts] or [ValueCounts.none() for _ in missing.buckets]
            return SecondPassSums(float(total), dict(zip(missing.buckets, tallies, strict=True)))

        return Deferred((total, *(digits[bucket] for bucket in missing.buckets if digits)), finish)


def complete(activation: Activation, sums: SecondPassSums, wanted: Wanted) -> None:
    moments = activation.moments
    if moments is None:
        return
    if _wants_deviation(moments, wanted):
        activation.moments = replace(moments, abs_deviation=sums.abs_deviation)
    if moments.leading and moments.n:
        activation.quantiles = quantiles_of(wanted.quantiles, moments.leading, sums.trailing)


def _missing(activation: Activation, wanted: Wanted) -> _Missing:
    moments = activation.moments
    if moments is None or activation.problem:
        return _Missing(None, ())
    is_short = activation.dtype in SHORT or moments.leading is None
    buckets = () if is_short or moments.leading is None else buckets_of(wanted.quantiles, moments.leading)
    return _Missing(moments.mean if _wants_deviation(moments, wanted) else None, buckets)


def _wants_deviation(moments: Moments, wanted: Wanted) -> bool:
    return wanted.mad and moments.abs_deviation is None


class ActivationObserver(Observer):
    """Reduces every output of the observed calls to statistics.

    Args:
        is_innermost_only: whether to skip calls that contain other layers.
    """

    def __init__(self, wanted: Wanted, *, is_innermost_only: bool) -> None:
        self.activations: dict[Key, Activation] = {}
        self._pending: list[tuple[Activation, Deferred[Moments]]] = []
        self._wanted = wanted
        self._is_innermost_only = is_innermost_only
        self._channels = ChannelFinder()
        self._lineage = Lineage()

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if self._wanted.channels:
            self._lineage.enter(call, module, (args, kwargs))

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        for path, tensor in tensors_in(output):
            channel_dim = self._channels.find(module, tensor)
            if is_innermost or not self._is_innermost_only:
                self._add(call, path, tensor, channel_dim)

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
            activation.channels = None
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
        self.activations, self._channels, self._lineage = {}, ChannelFinder(), Lineage()
        return settled


@dataclass(frozen=True, slots=True)
class BatchCapture:
    """Statistics of one batch: of the model's inputs and the layers' outputs."""

    inputs: tuple[ArgumentStats, ...]
    outputs: tuple[Activation, ...]


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
    n_batches: int | None = None,
) -> list[Activation]:
    """Run every batch and return the statistics of the activations, in execution order.

    The mean absolute deviation needs the mean of all images, and a quantile its bucket, so every batch is run a
    second time if they are wanted; for the deviation alone only with several batches.

    Args:
        over: iterates over the batches, the same in each pass; see `Blocks.over`.
        interventions: change values on the way, in both passes.
        batch_norms: observes batch norms; with it, the model runs in train mode.
        family: as in `LoadedModel`; detection models need targets in train mode.
        entering: receives the statistics of the inputs.
        n_batches: if known; with several, the first pass omits what only the second can compute.
    """
    at_first = replace(wanted, mad=wanted.mad and n_batches in (None, 1))
    observer = ActivationObserver(at_first, is_innermost_only=selection.is_innermost_only)
    is_training = batch_norms is not None

    def open_session(*observers: Observer) -> HookSession:
        wanted, names = selection.wanted, selection.names
        return HookSession(
            model, observers, wanted=wanted, names=names, is_training=is_training, interventions=interventions
        )

    def run(session: HookSession, batch: Batch) -> None:
        session.run(training_args(model, family, batch.args) if is_training else batch.args)

    def see(batch: Batch) -> BatchCapture:
        run(session, batch)
        inputs: Deferred[Any] = entered(batch.args) if entering is not None else Deferred((), tuple)
        return BatchCapture(*joined([inputs, observer.take()])())

    merged: dict[Key, Activation] = {}
    with open_session(observer, *([batch_norms] if batch_norms else [])) as session:
        for capture in over("activations", see, BatchCapture):
            if entering is not None:
                merge_arguments(entering, capture.inputs)
            merge_into(merged, capture.outputs)
    if wanted.quantiles or (wanted.mad and n_batches != 1):
        second = SecondPass(merged, wanted)

        def look_again(batch: Batch) -> tuple[SecondPassSums, ...]:
            run(session, batch)
            return second.take()

        extra: Sequence[SecondPassSums] = [SecondPassSums(0.0, {})] * len(merged)
        if second.is_needed:
            for intervention in interventions:
                intervention.repeat()
            with open_session(second) as session:
                extra = reduce(merge_all, over("second pass", look_again, tuple[SecondPassSums, ...]))
        for activation, sums in zip(merged.values(), extra, strict=True):
            complete(activation, sums, wanted)
    return sorted(merged.values(), key=lambda activation: activation.call.order)


def to_rows(activations: Collection[Activation]) -> tuple[ActivationStats, ...]:
    """Return statistics as rows, with the number of dead channels that were dead in an earlier row already."""
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
        mad=moments.mad,
        min=moments.low,
        max=moments.high,
        rms=moments.rms,
        zero_fraction=None if moments.n_zero is None else moments.n_zero / moments.n,
        near_zero_fraction=None if moments.n_near_zero is None else moments.n_near_zero / moments.n,
        histogram=Counts(histogram.edges, histogram.counts, histogram.is_sampled) if histogram else None,
        quantiles=activation.quantiles,
    )


class Lineage:
    """Tracks which call returned the tensor that enters another, by identity, through weak references."""

    def __init__(self) -> None:
        self._makers: dict[int, tuple[ReferenceType[Tensor], int, Key]] = {}
        self._given: dict[tuple[str, int], Key | None] = {}

    def enter(self, call: Call, module: nn.Module, inputs: Any) -> None:
        """Note the source of a call's input, before it may change it in place."""
        if _keeps_channels_apart(module):
            tensors = tensors_in(inputs)
            self._given[call.name, call.index] = self._maker(tensors[0][1]) if len(tensors) == 1 else None

    def leave(self, key: Key, tensor: Tensor) -> Key | None:
        """Note an output; return the output whose channels it passes on, None if they are its own."""
        source = self._maker(tensor) or self._given.get(key[:2])
        if not tensor.is_inference():
            self._makers[id(tensor)] = ref(tensor), version_of(tensor), key
        return source

    def _maker(self, tensor: Tensor) -> Key | None:
        """Return the output that a tensor is, None if it was changed since."""
        entry = self._makers.get(id(tensor))
        if entry is None or tensor.is_inference():
            return None
        maker, version, key = entry
        return key if maker() is tensor and version == version_of(tensor) else None


def _keeps_channels_apart(module: nn.Module) -> bool:
    """Check that each output channel depends on the same input channel only: pools, activations, batch norms."""
    if isinstance(module, nn.ChannelShuffle):
        return False
    has_own = next(module.parameters(), None) is not None or next(module.children(), None) is not None
    return not has_own or isinstance(module, _NormBase)
