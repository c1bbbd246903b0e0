"""`summary`: the layers of a model, their shapes and their cost."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from modelscope_cli.hooks.layers import list_layers, tensors_in
from modelscope_cli.hooks.patterns import Layer
from modelscope_cli.hooks.selection import TensorUse, storages_in
from modelscope_cli.hooks.session import Call, ForwardError, HookSession, Observer
from modelscope_cli.inputs.batch import shapes_of
from modelscope_cli.records.naming import parents_of
from modelscope_cli.records.progress import SILENT, Progress, counting
from modelscope_cli.records.run import Args, Arguments, Kwargs, Shape
from modelscope_cli.records.summary import INSIDE, USED, LayerShape, SummaryTotals


@dataclass(frozen=True, slots=True)
class MeasuredStructure:
    """The structure of a model in one pass."""

    # In execution order, one row per call; one for a layer never called, where the module tree has it
    layers: tuple[LayerShape, ...]
    totals: SummaryTotals
    uncounted_ops: tuple[str, ...]  # operators without a FLOP formula, with how often they ran
    error: ForwardError | None = None  # what the forward raised; the rows are those up to it
    shared: tuple[str, ...] = ()  # parameters of an earlier layer: `b.weight is a.weight`


@dataclass(slots=True)
class _Visit:
    call: Call
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...] = ()
    names: tuple[str, ...] = ()  # of the outputs
    flops: int = 0
    output_bytes: int = 0
    is_innermost: bool = False


class _ShapeObserver(Observer):
    """Records shapes on entry, so that a layer that raises has them, and costs on exit."""

    def __init__(self, counter: "_OperatorCounter") -> None:
        self.visits: dict[str, list[_Visit]] = defaultdict(list)
        # FLOPs of calls into a part of the module tree from outside, by the name of the part
        self.flops_inside: Counter[str] = Counter()
        self._counter = counter
        self.step: Callable[[], object] = lambda: None  # called on exit of each call, for progress
        self._open: list[str] = []

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        self._open[call.depth :] = [call.name]
        visit = _Visit(call, shapes_of((args, kwargs)), flops=-self._counter.get_total_flops())
        self.visits[call.name].append(visit)

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        visit = self.visits[call.name][call.index]
        visit.flops += self._counter.get_total_flops()
        visit.outputs = shapes_of(output)
        names = tuple(path for path, _ in tensors_in(output))
        visit.names = names if any(re.search("[A-Za-z]", name) for name in names) else ()
        visit.output_bytes = sum(tensor.nbytes for _, tensor in tensors_in(output))
        visit.is_innermost = is_innermost
        around = self._open[: call.depth]
        for part in parents_of(call.name):
            if not any(name == part or name.startswith(f"{part}.") for name in around):
                self.flops_inside[part] += visit.flops
        self.step()


def measure_shapes(model: nn.Module, args: Arguments, progress: Progress = SILENT) -> MeasuredStructure:
    """Run the model once, on whichever device it is, and return its structure.

    If the forward raises, the rows up to there are returned with the error.
    """
    counter = _OperatorCounter(model)
    observer = _ShapeObserver(counter)
    error = None
    with (
        HookSession(model, [observer]) as session,
        counter,
        counting(progress, "layers", len(list_layers(model))) as observer.step,
    ):
        try:
            session.run(args)
        except ForwardError as raised:
            error = raised
    present = list_layers(model)
    reasons = _reasons(model, observer.visits, counter.use.layers, error)
    first = {id(one): name for name, one in model.named_parameters()}
    rows = in_order([row for each in present for row in _rows(*each, first, observer, reasons)])
    totals = _totals(model, rows, observer.visits, counter.get_total_flops())
    named = model.named_parameters(remove_duplicate=False)
    shared = tuple(f"{name} is {first[id(one)]}" for name, one in named if name != first[id(one)])
    uncounted = tuple(f"{name} x{count}" for name, count in counter.uncounted.most_common())
    return MeasuredStructure(tuple(rows), totals, uncounted, error, shared)


def in_order(rows: Sequence[LayerShape]) -> list[LayerShape]:
    """Sort rows of the module tree in execution order.

    A layer that was not called comes before the calls inside it, or else after its predecessor in the tree.
    """
    places: list[tuple[int, int]] = []
    for n, row in enumerate(rows):
        if row.order is not None:
            places.append((row.order, 0))
            continue
        inside = [one.order for one in rows if one.order and one.name.startswith(f"{row.name}.")]
        before = min(inside) - 1 if inside else places[-1][0] if places else 0
        places.append((before, n))
    return [row for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]


# Kernels of attention on the CPU, MPS and XPU, for which torch has no formula: they take what that of CUDA takes.
_ATTENTION = ("flash_attention_for_cpu", "attention_math_for_mps", "fused_attention_overrideable")


class _OperatorCounter(FlopCounterMode):
    """Torch's counter, which also records operators without a formula, and whose tensors were used."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(display=False)
        operators = torch.ops.aten
        attention = self.flop_registry[operators._scaled_dot_product_flash_attention]
        formulas = {f"_scaled_dot_product_{name}": attention for name in _ATTENTION}
        # oneDNN's fused LSTM, one direction of one layer
        formulas["mkldnn_rnn_layer"] = lambda x, weight, recurrent, *rest, **named: (
            2 * x.shape[0] * x.shape[1] * (weight.numel() + recurrent.numel())
        )
        own = {getattr(operators, name): one for name, one in formulas.items() if hasattr(operators, name)}
        self.flop_registry = {**self.flop_registry, **own}
        self.mod_tracker = _NoTracker()  # type: ignore[assignment]
        self.use = TensorUse(model)
        self.uncounted: Counter[str] = Counter()  # how often operators without a formula ran

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        inputs = storages_in((*args, *kwargs.values()))
        self.use.see(inputs)
        name, outputs = str(func_packet), storages_in(out)
        is_view = not name.endswith("_") and any(one is other for one in inputs for other in outputs)
        is_arithmetic = inputs and outputs and not is_view and not name.endswith(_MOVES)
        if is_arithmetic and func_packet not in self.flop_registry:
            self.uncounted[name.removeprefix("aten.").rstrip("_")] += 1
        return super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]


class _NoTracker(nullcontext[None]):
    """Replaces torch's module tracker, whose hooks refuse a parameter as an argument without gradients."""

    parents = frozenset({"Global"})


_MOVES = ("clone", "_to_copy", "cat", "copy_", "detach", "empty_like", "zeros_like", "stack", "roll", "fill_")


def _rows(
    layer: Layer, module: nn.Module, first: dict[int, str], observer: _ShapeObserver, reasons: dict[str, str]
) -> Iterator[LayerShape]:
    inside = f"{layer.name}.".removeprefix(".")
    parameters = [one for one in module.parameters() if first.get(id(one), inside).startswith(inside)]
    columns: dict[str, Any] = {
        "name": layer.name,
        "type": layer.type,
        "depth": layer.depth,
        "is_leaf": layer.is_leaf,
        "kernel_size": _kernel_size(module),
        "params": sum(p.numel() for p in parameters),
        "trainable_params": sum(p.numel() for p in parameters if p.requires_grad),
    }
    visits = observer.visits.get(layer.name, [])
    for visit in visits:
        yield LayerShape(
            **columns,
            order=visit.call.order,
            call=visit.call.index,
            calls=len(visits),
            executed=True,
            input_shapes=visit.inputs,
            output_shapes=visit.outputs,
            output_names=visit.names,
            macs=max(visit.flops, 0) // 2,
            flops=max(visit.flops, 0),
            output_bytes=visit.output_bytes,
        )
    if not visits:
        yield LayerShape(
            **columns,
            order=None,
            call=0,
            calls=0,
            executed=False,
            input_shapes=(),
            output_shapes=(),
            macs=observer.flops_inside[layer.name] // 2,
            flops=observer.flops_inside[layer.name],
            output_bytes=0,
            note=reasons.get(layer.name),
        )


def _reasons(
    model: nn.Module, visits: dict[str, list[_Visit]], used: set[str], error: ForwardError | None
) -> dict[str, str]:
    """Return why layers were not called, by name, where known."""
    if error is not None:
        return {layer.name: "the forward pass did not reach it" for layer, _ in list_layers(model)}
    part = {around for name in (*visits, *used) for around in parents_of(name)}  # used in part
    reasons = dict.fromkeys(part, INSIDE) | dict.fromkeys(used, USED)
    for name, parent in model.named_modules():
        children = {f"{name}.{child}" if name else child for child, _ in parent.named_children()}
        if isinstance(parent, nn.MultiheadAttention):
            reasons |= dict.fromkeys(children, "the attention uses the weight without calling the layer")
        elif name and name not in visits and name not in part | used:
            reasons |= dict.fromkeys(children, f"inside {name.rpartition('.')[2]}")
        if "aux" in type(parent).__name__.lower() and name not in visits and name not in used:
            reasons[name] = "auxiliary head, for training"
    return reasons


def _kernel_size(module: nn.Module) -> Shape | None:
    size = getattr(module, "kernel_size", None)
    if isinstance(size, int) and not isinstance(size, bool):
        return (size,)
    if isinstance(size, tuple) and all(isinstance(n, int) for n in size):
        return size
    return None


def _totals(
    model: nn.Module, rows: list[LayerShape], visits: dict[str, list[_Visit]], flops: int
) -> SummaryTotals:
    all_visits = [visit for visits_of_layer in visits.values() for visit in visits_of_layer]
    return SummaryTotals(
        params=rows[0].params,
        trainable_params=rows[0].trainable_params,
        param_bytes=sum(one.nbytes for one in model.parameters()),
        buffer_bytes=sum(one.nbytes for one in model.buffers()),
        macs=flops // 2,
        flops=flops,
        activation_bytes=sum(visit.output_bytes for visit in all_visits if visit.is_innermost),
        layers=len({row.name for row in rows}),
        calls=len(all_visits),
    )
