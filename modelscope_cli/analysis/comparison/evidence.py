"""What enters and leaves the first layer that diverges, and runs of A with one thing changed."""

import math
from collections import deque
from collections.abc import Iterator, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from modelscope_cli.analysis.comparison.activations import Side
from modelscope_cli.analysis.comparison.programs import MOVING, Key, Matching, OnnxProgram, Seen
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.records.diff import LayerDifference
from modelscope_cli.records.run import Arguments

N_BEFORE = 16  # calls before the layer whose outputs are kept, to find missing ones
_N_DIGITS = 8  # units in the last place by which the kernels of two runtimes may differ
_N_ROUNDED = 4096  # values sampled of an output
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
class Divergence:
    """What enters and leaves the first layer that diverges, on both sides.

    Attributes:
        modules: the layer; with the one folded into it before it.
        name: of the layer whose row diverges; empty for the whole model.
        before: the outputs of the calls before it in A, by label, the latest last.
        untested: the labels of layers that have no value in B.
        between: values of B from those that are as in A to those that enter the layer.
        is_first: whether no layer with a value in B runs before it, also none that `--layer` leaves out.
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
    untested: frozenset[str]
    between: tuple[Tensor, ...] = ()

    @property
    def b_outs(self) -> tuple[Tensor, ...]:
        return () if self.b_out is None else (self.b_out,)


class _Tap(Observer):
    """Keeps what enters one call, what leaves another, and what left the calls before."""

    def __init__(self, first: tuple[str, int], last: tuple[str, int]) -> None:
        self._first, self._last = first, last
        self.entering: Tensor | None = None
        self.leaving: Tensor | None = None
        self.before: deque[tuple[str, str, Tensor]] = deque(maxlen=N_BEFORE)

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
class Changed(TorchFunctionMode):
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


def gathered(
    a: Side,
    b: Side,
    first: LayerDifference,
    tested: Sequence[LayerDifference],
    untested: frozenset[str],
    matching: Matching | None,
    args: Arguments,
) -> Divergence:
    key = (first.name, first.call, first.output)
    module = a.loaded.module
    names = [first.name]
    if matching is not None and "folded in" in (matching.remarks.get(key) or ""):
        folded = [other[0] for other, text in matching.remarks.items() if text == f"folded into {first.name}"]
        names = [*folded[-1:], first.name]
    modules = tuple((name, module.get_submodule(name)) for name in names) if first.name else ()
    start = (names[0], first.call)
    tap = _run(a, args, start, (first.name, first.call))
    between: tuple[Tensor, ...] = ()
    if b.program is None or matching is None:
        other = _run(b, args, start, (first.name, first.call))
        b_in = tuple(one for one in (other.entering,) if one is not None)
        b_out = other.leaving
    else:
        same = {matching.values.get(row.key) for row in tested if row.status == "same"}
        b_in, b_out, between = _values_of(b, matching, key, {*names} - {""}, args, same)
    is_last = not first.name or not any(row.order > first.order and row.name for row in tested)
    return Divergence(
        a=a,
        name=first.name,
        modules=modules,
        a_in=tap.entering,
        a_out=tap.leaving,
        b_in=b_in,
        b_out=b_out,
        before=tuple(tap.before),
        is_first=all(label in untested for label, *_ in tap.before),
        is_last=is_last,
        call=first.call,
        args=args,
        untested=untested,
        between=between,
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
    b: Side, matching: Matching, key: Key, layers: Set[str], args: Arguments, same: Set[str | None]
) -> tuple[tuple[Tensor, ...], Tensor | None, tuple[Tensor, ...]]:
    """Return the values of B that enter the nodes of `layers`, the one that leaves, and those before it."""
    program, out = b.program, matching.values.get(key)
    assert program is not None
    if out is None:
        return (), None, ()
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
            is_before = source is not None and len(layers) > 1 and source.operator in MOVING  # a convolution
            if source is not None and layers & {*source.modules} and not is_before:
                waiting.append(name)
            elif source is not None or not _is_stored(program, name):
                entering[name] = None
    wanted = [name for name in entering if name in by_name]
    since: dict[str, None] = {}
    waiting = list(wanted)
    while waiting and len(since) < N_BEFORE:
        name = waiting.pop(0)
        if name in by_name and name not in same and name not in since:
            since[name] = None
            waiting += by_name[name].inputs
    placed = b.place(args)
    names = list(dict.fromkeys([*wanted, out, *since]))
    computed = {name: tensor.clone() for name, tensor in program.run(placed, names)}
    given = [tensor for _, tensor in tensors_in(placed)] if len(wanted) < len(entering) else []
    entered = (*(computed[name] for name in wanted if name in computed), *given)
    return entered, computed.get(out), tuple(computed[name] for name in since if name in computed)


def _is_stored(program: Any, name: str) -> bool:
    return isinstance(program, OnnxProgram) and any(
        one.name == name for one in program.net.model.initialisers
    )


def apart(a: Tensor, b: Tensor) -> float:
    """Return |a - b| / |b|; infinite for other shapes."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.detach().cpu().double().nan_to_num(), b.detach().cpu().double().nan_to_num()
    size = b.norm().item()
    return (a - b).norm().item() / size if size else (0.0 if not a.norm().item() else math.inf)


def changes() -> Iterator[tuple[Changed, str]]:
    """Yield every variant of a function, without the rest of those of one that is not called."""
    for function, argument, place, values, kind in _VARIANTS:
        for value in values:
            changed = Changed(function, argument, place, value)
            yield changed, kind
            if not changed.seen:
                break


class _Rounded(Intervention):
    """Changes what layers return in the last digits, and keeps samples of the values that are asked for."""

    def __init__(self, keys: Set[Key], seed: int | None) -> None:
        self._keys, self._seed = keys, seed
        self._random = torch.Generator().manual_seed(seed or 0)
        self.samples: dict[Key, Seen] = {}

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        if self._seed is not None and isinstance(output, Tensor) and output.is_floating_point():
            digits = _N_DIGITS * torch.finfo(output.dtype).eps
            noise = torch.randn(output.shape, generator=self._random)
            output = output * (1 + digits * noise).to(output)
        for path, tensor in tensors_in(output):
            if (key := (call.name, call.index, path)) in self._keys:
                self.samples[key] = Seen.of(tensor, _N_ROUNDED)
        return output


def rounding(a: Side, keys: Set[Key], args: Arguments) -> dict[Key, float]:
    """Return how far A's own outputs move, by relative L2, where layers round otherwise: the most of four runs."""

    def samples(seed: int | None) -> dict[Key, Seen]:
        changed = _Rounded(keys, seed)
        interventions = (*a.interventions, changed)
        session = HookSession(a.loaded.module, is_training=a.is_training, interventions=interventions)
        with torch.random.fork_rng(devices=[]), session:
            torch.manual_seed(a.seed)
            session.run(a.place(args))
        return changed.samples

    plain = samples(None)
    runs = [samples(seed) for seed in range(4)]
    return {key: max(one.distance(run[key]) for run in runs if key in run) for key, one in plain.items()}


class _Window(_Tap, Intervention):
    """Has a change act between the end of one call and the begin of another, or leaves one call out."""

    def __init__(
        self, layer: tuple[str, int], last: tuple[str, int], changed: Changed | None, start: str, skipped: str
    ) -> None:
        super().__init__(layer, last)
        self._given: Tensor | None = None
        self._layer, self._changed, self._start, self._skipped = layer, changed, start, skipped
        self._turn(is_on=not start)

    def _turn(self, *, is_on: bool) -> None:
        if self._changed is not None:
            self._changed.is_on = is_on

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().enter(call, module, args, kwargs)
        if call.label == self._skipped and args and isinstance(args[0], Tensor):
            self._given = args[0].clone()  # which a layer may change in place
        if call.name and (call.name, call.index) == self._layer:
            self._turn(is_on=False)

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        super().leave(call, module, inputs, output, is_innermost)
        if call.label == self._start:
            self._turn(is_on=True)

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        given = self._given if call.label == self._skipped else None
        is_alike = given is not None and isinstance(output, Tensor) and given.shape == output.shape
        return given if is_alike else output


def under(
    a: Side,
    evidence: Divergence,
    changed: Changed | None = None,
    *,
    start: str = "",
    skipped: str = "",
    is_inside: bool = False,
) -> Tensor | None:
    """Return what enters the layer in A, or the output, with a change before it; None if A does not take it.

    Args:
        is_inside: return what leaves the layer instead.
    """
    name = evidence.modules[0][0] if evidence.modules else ""
    last = (evidence.name, evidence.call) if is_inside else ("", 0)
    window = _Window((name, evidence.call), last, changed, start, skipped)
    session = HookSession(a.loaded.module, [window], interventions=(*a.interventions, window))
    try:
        with session, changed or nullcontext():
            session.run(a.place(evidence.args))
    except CannotRunError:
        return None
    return window.entering if name and not is_inside else window.leaving
