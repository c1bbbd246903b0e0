"""Why B gives other results: the usual causes, each named only when a check shows it.

At the first layer that diverges, what enters it on both sides is compared first. Then the layer of A is computed
again with one thing changed, such as another epsilon: what makes it give B's values is the cause.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from modelscope_cli.analysis.comparison.activations import Side
from modelscope_cli.analysis.comparison.programs import ExportedProgramRun, Matching, OnnxProgram
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.models.checkpoint import each_with_file, read_values
from modelscope_cli.records.diff import Cause, LayerDifference
from modelscope_cli.records.run import Arguments

_ALIKE = 1e-3  # residual, relative to B, below which a change explains what is there
_N_BEFORE = 16  # calls before the layer whose outputs are kept, to find missing ones
_EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
# What a function may be told otherwise: its name, the argument and its place, and the values to try.
_VARIANTS: tuple[tuple[str, str, int, tuple[Any, ...], str], ...] = (
    *(
        (name, "eps", place, _EPSILONS, "epsilon")
        for name, place in zip(_NORMS, (7, 4, 4, 7, 3), strict=True)
    ),
    ("interpolate", "mode", 3, ("nearest", "nearest-exact", "bilinear", "bicubic"), "resize_mode"),
    ("interpolate", "align_corners", 4, (True, False), "resize_mode"),
    ("pad", "mode", 2, ("constant", "reflect", "replicate", "circular"), "padding"),
    ("gelu", "approximate", -1, ("none", "tanh"), "attribute"),
    ("leaky_relu", "negative_slope", 1, (0.01, 0.1, 0.2, 0.3), "attribute"),
    ("elu", "alpha", 1, (1.0, 0.5), "attribute"),
    ("avg_pool2d", "count_include_pad", 5, (True, False), "padding"),
    ("avg_pool2d", "ceil_mode", 4, (True, False), "attribute"),
    ("max_pool2d", "ceil_mode", 5, (True, False), "attribute"),
)
_DEFAULTS = {"mode": "nearest", "approximate": "none", "align_corners": None}


@dataclass(slots=True)
class Evidence:
    """What enters and leaves the first layer that diverges, on both sides.

    Attributes:
        modules: the layer; with the one folded into it before it.
        name: of the layer whose row diverges; empty for the whole model.
        before: the outputs of the calls before it in A, by label, the latest last.
        is_first: whether no layer before it was compared.
    """

    a: Side
    name: str
    modules: tuple[tuple[str, nn.Module], ...]
    a_in: Tensor | None
    a_out: Tensor | None
    b_in: tuple[Tensor, ...]
    b_out: Tensor | None
    before: tuple[tuple[str, str, Tensor], ...]
    is_first: bool
    is_last: bool
    call: int
    args: Arguments


class _Tap(Observer):
    """Keeps what enters one call, what leaves another, and what left the calls before."""

    def __init__(self, first: tuple[str, int], last: tuple[str, int]) -> None:
        self._first, self._last = first, last
        self.entering: Tensor | None = None
        self.leaving: Tensor | None = None
        self.before: deque[tuple[str, str, Tensor]] = deque(maxlen=_N_BEFORE)

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (call.name, call.index) == self._first and self.entering is None:
            tensors = [tensor for _, tensor in tensors_in((args, kwargs))]
            self.entering = tensors[0].detach().clone() if tensors else None

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        tensors = [tensor for _, tensor in tensors_in(output)]
        if tensors and (call.name, call.index) == self._last:
            self.leaving = tensors[0].detach().clone()
        elif tensors and is_innermost and self.entering is None:
            self.before.append((call.label, call.type, tensors[0].detach().clone()))


@dataclass
class _Changed(TorchFunctionMode):
    """Changes one argument of one function wherever it is called."""

    function: str
    argument: str
    place: int
    value: Any
    seen: list[Any] = field(default_factory=list)
    is_on: bool = True

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self.is_on and getattr(func, "__name__", "") == self.function:
            if 0 <= self.place < len(args):
                self.seen.append(args[self.place])
                args = (*args[: self.place], self.value, *args[self.place + 1 :])
            else:
                self.seen.append(kwargs.get(self.argument, _DEFAULTS.get(self.argument)))
                kwargs[self.argument] = self.value
            if self.argument == "mode" and self.value in ("nearest", "nearest-exact"):
                kwargs["align_corners"] = None
        return func(*args, **kwargs)


def find_causes(
    a: Side,
    b: Side,
    rows: Sequence[LayerDifference],
    matching: Matching | None,
    args: Arguments,
    tolerance: float,
    preprocessing: Preprocessing | None,
) -> tuple[Cause, ...]:
    """Return the causes that a check shows, the first first; empty if none does."""
    tested = [row for row in rows if row.rel_l2 is not None or row.status == "reshaped"]
    first = next((row for row in tested if row.status not in ("same", "not tested")), None)
    if first is None:
        return ()
    evidence = _gathered(a, b, first, tested, matching, args)
    checks: tuple[Callable[[], Iterator[Cause]], ...] = (
        lambda: _training(b),
        lambda: _entering(a, evidence, tolerance, preprocessing),
        lambda: _order(evidence, tolerance),
        lambda: _cast(evidence, tolerance),
        lambda: _variants(evidence, tolerance),
        lambda: _weights(a, b, evidence),
    )
    for check in checks:
        with torch.no_grad():
            if causes := tuple(check()):
                return causes
    return ()


def _gathered(
    a: Side,
    b: Side,
    first: LayerDifference,
    tested: Sequence[LayerDifference],
    matching: Matching | None,
    args: Arguments,
) -> Evidence:
    key = (first.name, first.call, first.output)
    module = a.loaded.module
    names = [first.name]
    if matching is not None and "folded in" in (matching.remarks.get(key) or ""):
        folded = [other[0] for other, text in matching.remarks.items() if text == f"folded into {first.name}"]
        names = [*folded[-1:], first.name]
    modules = tuple((name, module.get_submodule(name)) for name in names) if first.name else ()
    start = (names[0], first.call)
    tap = _run(a, args, start, (first.name, first.call))
    if b.program is None or matching is None:
        other = _run(b, args, start, (first.name, first.call))
        b_in = tuple(one for one in (other.entering,) if one is not None)
        b_out = other.leaving
    else:
        b_in, b_out = _values_of(b, matching, key, args)
    before = [row for row in tested if row.order < first.order and row.name]
    is_last = not first.name or not any(row.order > first.order and row.name for row in tested)
    return Evidence(
        a=a,
        name=first.name,
        modules=modules,
        a_in=tap.entering,
        a_out=tap.leaving,
        b_in=b_in,
        b_out=b_out,
        before=tuple(tap.before),
        is_first=not before,
        is_last=is_last,
        call=first.call,
        args=args,
    )


def _run(side: Side, args: Arguments, first: tuple[str, int], last: tuple[str, int]) -> _Tap:
    tap = _Tap(first, last)
    module = side.loaded.module
    with HookSession(
        module, [tap], is_training=side.is_training, interventions=side.interventions
    ) as session:
        session.run(side.place(args))
    return tap


def _values_of(
    b: Side, matching: Matching, key: tuple[str, int, str], args: Arguments
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Return the values that enter the nodes of a layer in B, and the one that leaves."""
    program, out = b.program, matching.values.get(key)
    assert program is not None
    if out is None:
        return (), None
    by_name = {value.name: value for value in program.values}
    entering: dict[str, None] = {}
    waiting, inside = [out], set[str]()
    while waiting:
        value = by_name.get(waiting.pop())
        if value is None or value.name in inside:
            continue
        inside.add(value.name)
        for name in value.inputs:
            source = by_name.get(name)
            if key[0] and source is not None and key[0] in source.modules:
                waiting.append(name)
            elif source is not None or not _is_stored(program, name):
                entering[name] = None
    wanted = [name for name in entering if name in by_name]
    placed = b.place(args)
    computed = {name: tensor.clone() for name, tensor in program.run(placed, [*wanted, out])}
    given = [tensor for _, tensor in tensors_in(placed)] if len(wanted) < len(entering) else []
    return (*(computed[name] for name in wanted if name in computed), *given), computed.get(out)


def _is_stored(program: Any, name: str) -> bool:
    return isinstance(program, OnnxProgram) and any(
        one.name == name for one in program.net.model.initialisers
    )


def _apart(a: Tensor, b: Tensor) -> float:
    """Return |a - b| / |b|; infinite for other shapes."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.detach().cpu().double().nan_to_num(), b.detach().cpu().double().nan_to_num()
    size = b.norm().item()
    return (a - b).norm().item() / size if size else (0.0 if not a.norm().item() else math.inf)


def _explains(found: Tensor, evidence: Evidence, tolerance: float) -> bool:
    """Tell whether a changed layer gives B's values, and much better than the unchanged one."""
    if evidence.b_out is None or evidence.a_out is None:
        return False
    apart = _apart(found, evidence.b_out)
    return apart <= max(tolerance, 1e-6) and apart < 0.1 * _apart(evidence.a_out, evidence.b_out)


# Training mode


def _training(b: Side) -> Iterator[Cause]:
    """A file whose norms use the batch, or whose dropout is active."""
    message, layer = None, None
    if isinstance(b.program, OnnxProgram):
        for node in b.program.net.model.nodes:
            is_norm = node.op_type == "BatchNormalization" and node.attributes.get("training_mode") == 1
            if is_norm or (node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2]):
                message, layer = f"node '{node.name}' ({node.op_type}) of B is in training mode", node.module
                break
    elif isinstance(b.program, ExportedProgramRun):
        for node in b.program.module.graph.nodes:
            text = str(node.target)
            is_norm = "batch_norm" in text and len(node.args) > 5 and node.args[5] is True
            if is_norm or ("dropout" in text and len(node.args) > 2 and node.args[2] is True):
                message, layer = f"'{node.name}' of B is in training mode", None
                break
    if message is not None:
        hint = "call model.eval() before the export"
        yield Cause("training_mode", layer or None, f"B was exported in training mode: {message}", hint)


# What enters


def _entering(
    a: Side, evidence: Evidence, tolerance: float, preprocessing: Preprocessing | None
) -> Iterator[Cause]:
    """What enters the layer already differs: by preprocessing in B, a missing layer, or an operation between."""
    ours = evidence.a_in if evidence.name else evidence.a_out
    theirs = evidence.b_in if evidence.name else tuple(one for one in (evidence.b_out,) if one is not None)
    if ours is None or not theirs or min(_apart(ours, one) for one in theirs) <= tolerance:
        return
    if evidence.is_first and evidence.name:
        alike = [other for other in theirs if other.numel() == ours.numel()] or theirs
        cause = _of_input(ours, min(alike, key=lambda other: _apart(other, ours)), preprocessing)
        if cause is not None:
            yield cause
            return
    where = evidence.name or "the output"
    for n, (label, _, tensor) in reversed(list(enumerate(evidence.before))):
        if any(_apart(tensor, one) <= tolerance for one in theirs):
            skipped = [f"{name} ({kind})" for name, kind, _ in evidence.before[n + 1 :]]
            missing = ", ".join(skipped) or f"an operation after {label}"
            message = f"{missing} is missing in B: what leaves {label} enters {where} there"
            layer = evidence.before[n + 1][0] if skipped else evidence.name or None
            yield Cause("missing_node", layer, message, f"look at the nodes before {where} in B")
            return
    start = evidence.before[-1][0] if evidence.before else ""
    for changed, kind in _changes():
        found = _under(a, evidence, changed, start)
        is_same = found is not None and min(_apart(found, one) for one in theirs) <= tolerance
        if is_same:
            message = f"between {start or 'the input'} and {where}, {_told(changed)}"
            hint = f"export {changed.function} with {changed.argument}={changed.seen[0]!r}"
            yield Cause(kind, evidence.name or None, message, hint)
            return


def _changes() -> Iterator[tuple[_Changed, str]]:
    """Yield every variant of a function, without the rest of those of one that is not called."""
    for function, argument, place, values, kind in _VARIANTS:
        for value in values:
            changed = _Changed(function, argument, place, value)
            yield changed, kind
            if not changed.seen:
                break


class _Window(_Tap):
    """Has a change act between the end of one call and the begin of another, or the end of the model."""

    def __init__(self, start: str, layer: tuple[str, int], changed: _Changed) -> None:
        super().__init__(layer, ("", 0))
        self._start, self._layer, self._changed = start, layer, changed
        changed.is_on = not start

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().enter(call, module, args, kwargs)
        if call.name and (call.name, call.index) == self._layer:
            self._changed.is_on = False

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        super().leave(call, module, inputs, output, is_innermost)
        if call.label == self._start:
            self._changed.is_on = True


def _under(a: Side, evidence: Evidence, changed: _Changed, start: str) -> Tensor | None:
    """Return what enters the layer in A, or the output, with a change before it; None if A does not take it."""
    name = evidence.modules[0][0] if evidence.modules else ""
    window = _Window(start, (name, evidence.call), changed)
    session = HookSession(a.loaded.module, [window], interventions=a.interventions)
    try:
        with session, changed:
            session.run(a.place(evidence.args))
    except CannotRunError:
        return None
    return window.entering if name else window.leaving


def _of_input(a: Tensor, b: Tensor, preprocessing: Preprocessing | None) -> Cause | None:
    """Explain what enters B by what enters A: axes, channels, range, mean and standard deviation, precision."""
    if a.ndim == 4 and b.shape == a.permute(0, 2, 3, 1).shape != a.shape:
        if _apart(a.permute(0, 2, 3, 1), b) < _ALIKE:
            message = "the inputs already differ: B takes them with the channels last"
            return Cause(
                "axis_order", None, message, "give B images of N, H, W, C, or export with channels second"
            )
        b = b.permute(0, 3, 1, 2)
    if a.shape != b.shape or a.ndim < 3:
        return None
    n = a.shape[1]
    orders = (
        list(itertools.permutations(range(n))) if n <= 4 else [tuple(range(n)), tuple(reversed(range(n)))]
    )
    fits = [(order, *_fitted(a[:, list(order)], b)) for order in orders]
    order, scale, shift, residual = min(fits, key=lambda fit: fit[3])
    if residual > _ALIKE:
        return None
    if order != tuple(range(n)):
        named = "blue, green, red" if order == (2, 1, 0) else ", ".join(map(str, order))
        message = f"the inputs already differ: B takes the channels in the order {named}"
        return Cause("channel_order", None, message, "give A and B the channels in one order")
    if _rounds(b) and not _rounds(a):
        kind = "float16" if _is_of(b, torch.float16) else "bfloat16"
        return Cause("cast", None, f"the inputs already differ: B rounds them to {kind}", "export in float32")
    if scale.std(correction=0) < 1e-3 * scale.abs().mean() and shift.abs().max() < 1e-3:
        message = f"the inputs already differ: those of B are {scale.mean():.4g} times those of A"
        return Cause("input_range", None, message, "give both the range that A is trained on")
    text = f"B's are {_listed(scale)} times A's plus {_listed(shift)}, by channel"
    if preprocessing is not None and len(preprocessing.mean) == n:
        mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
        b_std, b_mean = std / scale, mean - shift * std / scale
        text = f"B's mean is {_listed(b_mean)} and its std {_listed(b_std)}, A's {_listed(mean)} and {_listed(std)}"
    message = f"the inputs already differ: another normalisation; {text}"
    return Cause("preprocessing", None, message, "normalise once, with the mean and std of A")


def _fitted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, float]:
    """Fit b = scale * a + shift for every channel; the residual is relative to the spread of b."""
    x = a.detach().cpu().double().transpose(0, 1).flatten(1)
    y = b.detach().cpu().double().transpose(0, 1).flatten(1)
    dx, dy = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    scale = (dx * dy).sum(1) / dx.square().sum(1).clamp_min(1e-30)
    shift = y.mean(1) - scale * x.mean(1)
    left = (scale[:, None] * x + shift[:, None] - y).norm().item()
    return scale.float(), shift.float(), left / max(dy.norm().item(), 1e-30)


def _listed(values: Tensor) -> str:
    return " ".join(f"{value:.3g}" for value in values.tolist()[:4]) + (" ..." if len(values) > 4 else "")


# What leaves


def _order(evidence: Evidence, tolerance: float) -> Iterator[Cause]:
    """Classes in another order, or a first layer that takes channels in another order."""
    a, b = evidence.a_out, evidence.b_out
    if a is None or b is None or a.shape != b.shape:
        return
    if a.ndim == 2 and evidence.is_last and _apart(a.sort(1).values, b.sort(1).values) <= tolerance:
        moved = (a - b).abs().amax(0) > tolerance * a.abs().max()
        message = f"B has the classes in another order: the same values at {int(moved.sum())} other places"
        yield Cause("class_order", evidence.name or None, message, "map the labels, or export the head of A")
        return
    given = evidence.a_in
    if (
        evidence.is_first
        and evidence.modules
        and given is not None
        and given.ndim == 4
        and given.shape[1] == 3
    ):
        for order in itertools.permutations(range(3)):
            if order != (0, 1, 2) and _explains(
                _forward(evidence, given[:, list(order)]), evidence, tolerance
            ):
                named = "blue, green, red" if order == (2, 1, 0) else ", ".join(map(str, order))
                message = f"the inputs already differ: B takes the channels in the order {named}"
                yield Cause("channel_order", evidence.name, message, "give B its channels in that order")
                return


def _forward(evidence: Evidence, given: Tensor) -> Tensor:
    """Run the layer alone, in the mode of the comparison; it is left as it was."""
    value: Any = given
    with HookSession(evidence.a.loaded.module, is_training=evidence.a.is_training):
        for _, module in evidence.modules:
            value = module(value)
    tensors = [tensor for _, tensor in tensors_in(value)]
    return tensors[0] if tensors else torch.empty(0)


def _cast(evidence: Evidence, tolerance: float) -> Iterator[Cause]:
    """Values that a coarser type can hold exactly, although those of A do not fit in it."""
    a, b = evidence.a_out, evidence.b_out
    if a is None or b is None or a.dtype != torch.float32:
        return
    kind = next(
        (name for name in (torch.float16, torch.bfloat16) if _is_of(b, name) and not _is_of(a, name)), None
    )
    where = "its output is"
    if kind is None:
        given = next((one for one in evidence.b_in if one.is_floating_point()), None)
        if given is None or evidence.a_in is None:
            return
        kinds = (torch.float16, torch.bfloat16)
        kind = next((name for name in kinds if _is_of(given, name) and not _is_of(evidence.a_in, name)), None)
        where = "what enters it is"
    if kind is not None and _apart(a, b) < 0.05:
        text = str(kind).removeprefix("torch.")
        message = f"B computes {evidence.name or 'its output'} in {text}: {where} rounded to it"
        yield Cause(
            "cast", evidence.name or None, message, f"keep {evidence.name or 'it'} in float32 in the export"
        )


def _rounds(tensor: Tensor) -> bool:
    return _is_of(tensor, torch.float16) or _is_of(tensor, torch.bfloat16)


def _is_of(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether all values are exact in a coarser type, and not just few or round ones."""
    if tensor.dtype == dtype:
        return True
    values = tensor.detach().cpu().float()
    return values.unique().numel() > 16 and bool((values.to(dtype).float() == values).all())


def _variants(evidence: Evidence, tolerance: float) -> Iterator[Cause]:
    """Compute the layer again with one argument changed; what gives B's values is the cause."""
    if evidence.a_in is None or not evidence.modules:
        return
    for changed, kind in _changes():
        try:
            with changed:
                found = _forward(evidence, evidence.a_in)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):  # a value it does not take
            continue
        if changed.seen and _explains(found, evidence, tolerance):
            hint = f"export {evidence.name} with {changed.argument}={changed.seen[0]!r}"
            yield Cause(kind, evidence.name, f"{evidence.name}: {_told(changed)}", hint)
            return


def _told(changed: _Changed) -> str:
    values = f"{changed.value!r} in B and {changed.seen[0]!r} in A"
    return f"{changed.argument} of {changed.function} is {values}: with B's, A gives B's values"


# Weights


def _weights(a: Side, b: Side, evidence: Evidence) -> Iterator[Cause]:
    """Parameters of the layer that are not those of A."""
    stored = _stored(b)
    if len(evidence.modules) == 2:
        yield from _folded_weights(*evidence.modules, stored)
        return
    if not evidence.modules:
        return
    name, module = evidence.modules[0]
    for own, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        other = _counterpart(f"{name}.{own}", tensor, stored)
        if other is not None and (cause := _differing(name, f"{name}.{own}", tensor, other)) is not None:
            yield cause


def _stored(b: Side) -> dict[str, Tensor]:
    if not isinstance(b.program, OnnxProgram):
        return {key: one for key, one in b.loaded.module.state_dict().items() if isinstance(one, Tensor)}
    entries = [one for one in b.program.net.model.initialisers if one.special is None]
    return {entry.name: read_values(entry, file) for entry, file in each_with_file(entries)}


def _counterpart(name: str, tensor: Tensor, stored: dict[str, Tensor]) -> Tensor | None:
    """Return the stored tensor of this name, or the nearest of its shape; it may be transposed."""

    def fitted(other: Tensor) -> Tensor | None:
        is_turned = other.ndim == 2 and other.T.shape == tensor.shape and other.shape != tensor.shape
        return other if other.shape == tensor.shape else other.T if is_turned else None

    if name in stored and (found := fitted(stored[name])) is not None:
        return found
    alike = [one for other in stored.values() if (one := fitted(other)) is not None]
    nearest = min(alike, key=lambda one: _apart(one, tensor), default=None)
    return nearest if nearest is not None and _apart(nearest, tensor) < 0.5 else None


def _differing(layer: str, name: str, ours: Tensor, theirs: Tensor, slack: float = 0.0) -> Cause | None:
    if not ours.is_floating_point() or not theirs.is_floating_point() or theirs.shape != ours.shape:
        return None
    apart = (ours.detach().cpu().double() - theirs.detach().cpu().double()).abs()
    is_other = apart > slack * ours.detach().abs().max().double()
    count = int(is_other.sum())
    if not count:
        return None
    if _rounds(theirs) and not _rounds(ours.detach()):
        kind = "float16" if _is_of(theirs, torch.float16) else "bfloat16"
        return Cause(
            "cast", layer, f"{name} is rounded to {kind} in B", f"keep {layer} in float32 in the export"
        )
    at = ", ".join(str(int(i)) for i in torch.unravel_index(apart.argmax(), apart.shape))
    message = f"{name} differs in {count} of {ours.numel()} values, most at [{at}], by {apart.max():.3g}"
    return Cause("weights", layer, message, "export again from the weights of A")


def _folded_weights(
    conv: tuple[str, nn.Module], norm: tuple[str, nn.Module], stored: dict[str, Tensor]
) -> Iterator[Cause]:
    """Compare a convolution with its norm folded in; which of both differs is told by how its values are spread."""
    weight, layer = getattr(conv[1], "weight", None), norm[1]
    variance = getattr(layer, "running_var", None)
    if not isinstance(weight, Tensor) or variance is None:
        return
    gain = getattr(layer, "weight", None)
    scale = (torch.ones_like(variance) if gain is None else gain) / (variance + layer.eps).sqrt()
    is_turned = type(conv[1]).__name__.startswith("ConvTranspose")
    sides = (1, -1) if is_turned else (-1, 1)
    folded = weight * scale.reshape(*sides, *([1] * (weight.ndim - 2)))
    other = _counterpart(f"{conv[0]}.weight", folded, stored)
    if other is None:
        return
    apart = (folded.detach().cpu() - other).abs() > 1e-5 * folded.detach().abs().max().cpu()
    channels = apart.transpose(0, 1) if is_turned else apart
    rows = channels.flatten(1)
    is_whole = bool(rows[rows.any(1)].float().mean() > 0.5) if rows.any() else False
    culprit = norm[0] if is_whole or not rows.any() else conv[0]
    cause = _differing(culprit, f"{culprit}.weight (folded with its norm)", folded, other, slack=1e-5)
    if cause is not None:
        yield cause
        return
    shift = _of(layer, "bias", scale) - _of(layer, "running_mean", scale) * scale
    bias = getattr(conv[1], "bias", None)
    shift = shift if bias is None else shift + bias * scale
    candidates = [one for one in stored.values() if one.shape == shift.shape]
    nearest = min(candidates, key=lambda one: _apart(one, shift), default=None)
    cause = None if nearest is None else _differing(norm[0], f"{norm[0]}.bias (folded)", shift, nearest, 1e-5)
    if cause is not None:
        yield cause


def _of(module: nn.Module, name: str, like: Tensor) -> Tensor:
    value = getattr(module, name, None)
    return value if isinstance(value, Tensor) else torch.zeros_like(like)
