"""What enters and leaves the first layer that diverges, and runs of A with one thing changed."""

from collections import deque
from collections.abc import Iterator, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.comparison.activations import Side
from modelscope_cli.analysis.comparison.programs import MOVING, Key, LayerNames, Matching, OnnxProgram, Seen
from modelscope_cli.analysis.comparison.variants import Changed, apart
from modelscope_cli.checkpoints.entries import TensorEntry
from modelscope_cli.checkpoints.tensors import read_values
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.records.diff import LayerDifference
from modelscope_cli.records.run import Arguments

_ALIKE = 1e-5  # relative L2 within which a value that enters on both sides is the same
N_BEFORE = 16  # calls before the layer whose outputs are kept, to find missing ones
_N_DIGITS = 8  # units in the last place by which the kernels of two runtimes may differ
_N_ROUNDED = 4096  # values sampled of an output


@dataclass(slots=True)
class Divergence:
    """What enters and leaves the first layer that diverges, on both sides.

    Attributes:
        modules: the layer; with the one folded into it before it.
        name: of the layer whose row diverges; empty for the whole model.
        a_in, b_in: the value that enters it in A and not in B, the `place`-th; those that enter it in B alone.
        before: the outputs of the calls before it in A, by label, the latest last.
        untested: the labels of layers that have no value in B.
        between: values of B from those that are as in A to those that enter the layer.
        is_first: whether no layer with a value in B runs before it, also none that `--layer` leaves out.
    """

    a: Side
    name: str
    modules: tuple[tuple[str, nn.Module], ...]
    a_in: Tensor | None
    place: int
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
        self.entering: list[Tensor] = []
        self.leaving: Tensor | None = None
        self.before: deque[tuple[str, str, Tensor]] = deque(maxlen=N_BEFORE)

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (call.name, call.index) == self._first and not self.entering:
            self.entering = [tensor.detach().clone() for _, tensor in tensors_in((args, kwargs))]

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        tensors = [tensor for _, tensor in tensors_in(output)]
        if tensors and (call.name, call.index) == self._last:
            self.leaving = tensors[0].detach().clone()
        elif tensors and is_innermost and not self.entering:
            self.before.append((call.label, call.type, tensors[0].detach().clone()))


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
        b_in = tuple(other.entering)
        b_out = other.leaving
    else:
        same = {matching.values.get(row.key) for row in tested if row.status == "same"}
        b_in, b_out, between = _values_of(b, matching, key, {*names} - {""}, args, same)
    # Of several values that enter, the one that is not among those of B.
    alone = [n for n, one in enumerate(tap.entering) if all(apart(one, other) > _ALIKE for other in b_in)]
    place = alone[0] if alone else 0
    if alone:
        b_in = tuple(one for one in b_in if all(apart(other, one) > _ALIKE for other in tap.entering)) or b_in
    is_last = not first.name or not any(row.order > first.order and row.name for row in tested)
    return Divergence(
        a=a,
        name=first.name,
        modules=modules,
        a_in=tap.entering[place] if tap.entering else None,
        place=place,
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


class Stored:
    """The tensors of B by the names that A has for them, each read when it is asked for."""

    def __init__(self, a: Side, b: Side) -> None:
        self._tensors: dict[str, Tensor | TensorEntry] = {}
        if isinstance(b.program, OnnxProgram):
            names = LayerNames(a.loaded.module)
            for entry in b.program.net.model.initialisers:
                layer, dot, own = entry.name.rpartition(".")
                if entry.special is None:
                    self._tensors[f"{names.resolve(layer)}{dot}{own}"] = entry
        else:
            state = b.loaded.module.state_dict()
            self._tensors |= {key: one for key, one in state.items() if isinstance(one, Tensor)}

    def get(self, name: str) -> Tensor | None:
        one = self._tensors.get(name)
        return read_values(one) if isinstance(one, TensorEntry) else one

    def of_shape(self, shape: tuple[int, ...]) -> Iterator[Tensor]:
        """Yield the tensors that have a shape, up to axes of size one, or that have it transposed."""
        bare = [size for size in shape if size != 1]
        for name, one in self._tensors.items():
            sizes = [size for size in one.shape if size != 1]
            is_alike = sizes in (bare, bare[::-1]) if bare else tuple(one.shape) == shape
            if is_alike and (found := self.get(name)) is not None:
                yield found


def outputs_of(a: Side, b: Side, args: Arguments) -> tuple[Tensor, Tensor] | None:
    """Return the first output of A and of a program; None where one of them does not take the input."""
    assert b.program is not None
    tap = _Tap(("", 0), ("", 0))
    try:
        with HookSession(a.loaded.module, [tap], interventions=a.interventions) as session:
            session.run(a.place(args))
        made = next(iter(b.program.run(b.place(args), b.program.outputs[:1])), None)
    except CannotRunError:
        return None
    return (tap.leaving, made[1].clone()) if tap.leaving is not None and made is not None else None


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
    """Has a change act between the end of one call and the begin of the next, or leaves one call out."""

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
        if call.name and ((call.name, call.index) == self._layer or not any(module.children())):
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
    if not name or is_inside:
        return window.leaving
    return window.entering[evidence.place] if evidence.place < len(window.entering) else None
