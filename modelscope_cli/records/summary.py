"""What `summary` returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.display import Row, amount, column, figure, hidden, shape, size, words
from modelscope_cli.records.run import Record, Shape

# Notes of layers that take part without being called.
USED = "used without a call, through its parameters or buffers"
INSIDE = "only its sublayers are called"
# The columns that need a run with values.
MEASURED = ("time", "field")
# What `--optimizer` of a step can be: the class in `torch.optim`, and its arguments.
OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "rmsprop": ("RMSprop", {}),
    "adagrad": ("Adagrad", {}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
}
AMP = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class LayerShape(Row):
    """One row of `summary`: one call of one layer, or a layer that was not called.

    Attributes:
        depth: 0 for the model, 1 for its children.
        order: 1-based position among all calls; None where the layer was not called.
        call: 0 for the first call, 1 for the second; `calls` counts them.
        executed: whether the layer was called at all.
        input_shapes, output_shapes: of every tensor that went in and came out.
        output_names: of those of a dict: `out`, `0.boxes`; empty for others.
        kernel_size: of convolutions and pools.
        params, trainable_params: in the layer and everything below it, without those of an earlier layer.
        macs, flops: of this call with everything inside it, for one batch; flops are 2 x macs. Of a list of layers,
            which is never called itself, the sum of what is called in it.
        output_bytes: memory of the output tensors.
        note: why the layer was not called, where that is known; `USED` and `INSIDE` take part uncalled.
        time_ms: milliseconds of this call with everything inside it, the median of several forwards; None where
            it was not measured.
        receptive_field: height and width, in pixels of the input, of the largest box that one value of the output
            depends on; at most the input.
        saved_bytes: of a training step: what autograd keeps for the backward because of this call and those
            inside it, without weights and buffers. A storage that an earlier call already kept is not counted.
        peak_bytes: what this call and those inside it allocated or kept, in forward and backward, and that
            exists at the peak of the step.
    """

    name: str
    type: Annotated[str, words(rank=2)]
    depth: Annotated[int, hidden()]
    order: Annotated[int | None, hidden()]
    call: int
    calls: int
    executed: bool
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    kernel_size: Shape | None
    params: Annotated[int, column(rank=0)]
    trainable_params: Annotated[int, hidden(key="trainable")]
    macs: Annotated[int, amount("MACs")]
    flops: Annotated[int, amount("FLOPs", is_shown=False)]
    output_bytes: Annotated[int, size("memory", rank=6, key="memory")]
    is_leaf: bool
    output_names: tuple[str, ...] = ()
    note: str | None = None
    time_ms: Annotated[float | None, figure("time (ms)", key="time")] = None
    receptive_field: Annotated[Shape | None, shape("receptive field", key="field")] = None
    saved_bytes: Annotated[int | None, size("saved", rank=2, key="saved")] = None
    peak_bytes: Annotated[int | None, size("peak", rank=3, key="peak")] = None


@dataclass(frozen=True, slots=True)
class SummaryTotals:
    """Sums over the whole model for one batch. `activation_bytes`: the outputs of all innermost calls, which is
    neither what a forward needs at once nor what training keeps; `training` has that."""

    params: int
    trainable_params: int
    param_bytes: int
    buffer_bytes: int
    macs: int
    flops: int
    activation_bytes: int
    layers: int
    calls: int


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """The highest memory of a step while one layer ran.

    Attributes:
        phase: `forward`, `backward` or `optimizer`.
        layer: the label of the innermost call; None outside all layers.
    """

    phase: str
    layer: str | None
    bytes: int


@dataclass(frozen=True, slots=True)
class MemorySaving:
    """One way to need less memory, computed by running the step that way, with a batch that does not fit.

    Attributes:
        peak_bytes, less_bytes: the peak of that step, and how much less it is than without the saving.
        keyword: the option for it; None in documents of earlier versions that had advice without one.
    """

    what: str
    peak_bytes: int
    less_bytes: int
    keyword: str | None = None


@dataclass(frozen=True, slots=True)
class BatchFit:
    """The largest batch whose step fits into a limit.

    Attributes:
        batch: 0 if not even the smallest batch fits.
        peak_bytes: peak of that batch; of the smallest batch if none fits.
        next_bytes: peak of a batch with one more image; None if none fits.
        smallest: the smallest batch that the model takes.
        is_computed: whether steps of both sizes were run; otherwise they are extrapolated from two smaller
            ones.
    """

    limit_bytes: int
    batch: int
    peak_bytes: int
    next_bytes: int | None
    smallest: int
    is_computed: bool


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """The memory of one training step.

    Attributes:
        batch: images in the step.
        optimizer, amp: of the step; `amp` None without autocast.
        gradient_bytes, optimizer_bytes: of all gradients, and of the state that the optimizer keeps.
        saved_bytes: the sum over the storages that autograd keeps for the backward, without weights and buffers.
        peak_bytes: the highest sum of all tensors.
        peak: when that is, and in which layer.
        at_peak: what it consists of: `parameters`, `buffers`, `gradients`, `optimizer state`, `input`, `saved`,
            and `temporary` for the rest.
        savings: what would reduce the peak, the largest reduction first; empty if the batch fits.
        is_fake: whether the step ran without values; otherwise its tensors were allocated.
        device: whose kernels the step has: `cpu` or `cuda`.
        assumed: what the memory rests on that could not be asked of the device, in words.
    """

    batch: int
    optimizer: str
    amp: str | None
    gradient_bytes: int
    optimizer_bytes: int
    saved_bytes: int
    peak_bytes: int
    peak: MemoryLevel
    at_peak: dict[str, int]
    savings: tuple[MemorySaving, ...] = ()
    fit: BatchFit | None = None
    is_fake: bool = True
    device: str = "cpu"
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryRecord(Record):
    """What `summary` returns.

    Attributes:
        layers: in execution order; layers that were not called keep their place in the module tree.
        uncounted_ops: operators without a FLOP formula, with their counts.
        failed: the label of the layer whose forward raised; the rows end there.
        training: the memory of one training step, if requested.
        timed_by: in words, what measured `time_ms`: events of the device, or a clock.
        shared: parameters of several layers, counted for the first: `b.weight is a.weight`.
    """

    document: ClassVar[str] = "summary"
    layers: tuple[LayerShape, ...]
    totals: SummaryTotals
    uncounted_ops: tuple[str, ...] = ()
    failed: str | None = None
    training: TrainingMemory | None = None
    timed_by: str | None = None
    shared: tuple[str, ...] = ()
