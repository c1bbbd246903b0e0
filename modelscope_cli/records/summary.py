"""What `summary` returns."""

from dataclasses import dataclass

from modelscope_cli.records.run import Record, Shape

# Notes of layers that are not called and take part all the same.
USED = "used without a call, by its parameters or buffers"
INSIDE = "only what is inside it is called"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One row of `summary`: one call of one layer, or a layer that was not called.

    Attributes:
        depth: 0 for the model, 1 for its children.
        order: 1-based position among all calls; None where the layer was not called.
        call: 0 for the first call, 1 for the second; `calls` counts them.
        executed: whether the layer was called at all.
        input_shapes, output_shapes: of every tensor that went in and came out.
        kernel_size: of convolutions and pools.
        params, trainable_params: in the layer and everything below it; counted once where shared.
        macs, flops: of this call with everything inside it, for one batch; flops are 2 x macs. Of a list of layers,
            which is never called itself, the sum of what is called in it.
        output_bytes: memory of the output tensors.
        note: why the layer was not called, where that is known; `USED` and `INSIDE` take part uncalled.
    """

    name: str
    type: str
    depth: int
    order: int | None
    call: int
    calls: int
    executed: bool
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    kernel_size: Shape | None
    params: int
    trainable_params: int
    macs: int
    flops: int
    output_bytes: int
    is_leaf: bool
    note: str | None = None


@dataclass(frozen=True, slots=True)
class SummaryTotals:
    """Sums over the whole model for one batch. `activation_bytes`: the outputs of all innermost calls, which is
    what training keeps at least; a forward alone frees most of it."""

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
class SummaryRecord(Record):
    """What `summary` returns.

    Attributes:
        layers: in execution order; what was not called stands where the module tree has it.
        uncounted_ops: operators that ran and for which no FLOP formula exists, with how often.
        failed: the label of the layer whose forward raised; then the rows up to it are there. Else None.
    """

    layers: tuple[LayerShape, ...]
    totals: SummaryTotals
    uncounted_ops: tuple[str, ...] = ()
    failed: str | None = None
