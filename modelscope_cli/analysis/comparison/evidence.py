"""What enters and leaves the first layer that diverges, and runs of A with one thing changed."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.comparison.activations import Side
from modelscope_cli.analysis.comparison.distance import Distance, place_of, sum_up, to_distance
from modelscope_cli.analysis.comparison.matching import MOVING, Key, LayerNames, Matching
from modelscope_cli.analysis.comparison.programs import OnnxProgram
from modelscope_cli.analysis.comparison.variants import Changed, apart
from modelscope_cli.checkpoints.entries import TensorEntry
from modelscope_cli.checkpoints.tensors import read_values
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.random_states import kept_random_states
from modelscope_cli.hooks.session import Call, Intervention, Observer
from modelscope_cli.hooks.torch_private import operators_shown_to
from modelscope_cli.records.diff import LayerDifference
from modelscope_cli.records.run import Args, Arguments, Kwargs

_ALIKE = 1e-5  # relative L2 within which a value that enters on both sides is the same
N_BEFORE = 16  # calls before the layer whose outputs are kept, to find missing ones
_SLACK = 2  # where no digit is left, each run is as far from the others
_N_RUNS, _FAR = 8, 100  # with other rounding; of the first difference to the rounding that cannot explain it
# By the size of a number: integers of this size, and the units in the last place by which kernels differ.
_NUMBERS = {8: (torch.int64, 8), 4: (torch.int32, 8), 2: (torch.int16, 2)}
_N_KEPT = 1 << 24  # values of outputs that are kept at once


@dataclass(slots=True)
class Divergence:
    """What enters and leaves the first layer that diverges, on both sides."""

    a: Side
    name: str  # of the layer whose row diverges; empty for the whole model
    modules: tuple[tuple[str, nn.Module], ...]  # the layer; with the one folded into it before it
    a_in: Tensor | None  # the value that enters the layer in A and not in B, the `place`-th
    place: int
    a_out: Tensor | None
    b_in: tuple[Tensor, ...]  # those that enter it in B alone
    b_outs: tuple[Tensor, ...]  # what leaves it, one value or none
    # The outputs of the calls before it in A, by label, the latest last.
    before: tuple[tuple[str, str, Tensor], ...]
    is_first: bool  # no layer with a value in B runs before it, also none that `--layer` leaves out
    is_last: bool
    call: int
    args: Arguments
    untested: frozenset[str]  # the labels of layers that have no value in B
    between: tuple[Tensor, ...] = ()  # values of B from those that are as in A to those that enter the layer
    numbers: tuple[float, ...] = ()  # arguments of the nodes of the layer, and of those between
    weights: frozenset[str] = frozenset()  # names of the tensors stored in B that the nodes of the layer use


class _Tap(Observer):
    """Keeps what enters one call, what leaves another, and what left the calls before."""

    def __init__(self, first: tuple[str, int], last: tuple[str, int]) -> None:
        self._first, self._last = first, last
        self.entering: list[Tensor] = []
        self.leaving: Tensor | None = None
        self.before: deque[tuple[str, str, Tensor]] = deque(maxlen=N_BEFORE)

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if (call.name, call.index) == self._first and not self.entering:
            self.entering = [tensor.detach().clone() for _, tensor in tensors_in((args, kwargs))]

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        tensors = [tensor for _, tensor in tensors_in(output)]
        if tensors and (call.name, call.index) == self._last:
            self.leaving = tensors[0].detach().clone()
        elif tensors and is_innermost and not (self.entering and self._first[0]):
            self.before.append((call.label, call.type, tensors[0].detach().clone()))


def gathered(
    a: Side,
    b: Side,
    first: LayerDifference,
    tested: Sequence[LayerDifference],
    untested: frozenset[str],
    matching: Matching,
    args: Arguments,
    observers: Sequence[Any] = (),
) -> Divergence:
    """Run both sides once and return what enters and leaves the first layer that diverges.

    Args:
        observers: of A and of B, which see these runs too, and by their `mode` the operators.
    """
    key = (first.name, first.call, first.output)
    names = [first.name]
    remark = matching.remarks.get(key) or ""
    if "folded in" in remark:
        folded = [other[0] for other, text in matching.remarks.items() if text == f"folded into {first.name}"]
        names = [*folded[-1:], first.name]
    modules = tuple((name, a.loaded.module.get_submodule(name)) for name in names) if first.name else ()
    start = (names[0], first.call)
    tap = _Tap(start, (first.name, first.call))
    a.run(args, tap, *observers[:1], mode=observers[0].mode if observers else None)
    between, numbers, weights = tuple[Tensor, ...](), tuple[float, ...](), frozenset[str]()
    if b.program is None:
        other = _Tap(start, (first.name, first.call))
        b.run(args, other, *observers[1:], mode=observers[1].mode if observers else None)
        b_in, b_out = tuple(other.entering), other.leaving
    else:
        same = {matching.values.get(row.key) for row in tested if row.status == "same"}
        b_in, b_out, between, numbers, weights = _values_of(b, matching, key, {*names} - {""}, args, same)
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
        b_outs=() if b_out is None else (b_out,),
        before=tuple(tap.before),
        is_first=all(label in untested for label, *_ in tap.before),
        is_last=is_last,
        call=first.call,
        args=args,
        untested=untested,
        between=between,
        numbers=numbers,
        weights=frozenset() if remark.startswith("by shape") else weights,  # it may be another layer's value
    )


def _values_of(
    b: Side, matching: Matching, key: Key, layers: Set[str], args: Arguments, same: Set[str | None]
) -> tuple[tuple[Tensor, ...], Tensor | None, tuple[Tensor, ...], tuple[float, ...], frozenset[str]]:
    """Return what enters the nodes of `layers` in B, what leaves, values before it, numbers, and stored tensors."""
    program, out = b.program, matching.values.get(key)
    assert program is not None
    if out is None:
        return (), None, (), (), frozenset()
    by_name = {value.name: value for value in program.values}
    stored = {one.name for one in program.net.model.initialisers} if isinstance(program, OnnxProgram) else {}
    entering: dict[str, None] = {}
    waiting, inside, weights = [out], set[str](), set[str]()
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
            elif source is None and name in stored:
                weights.add(name)
            else:
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
    between = tuple(computed[name] for name in since if name in computed)
    numbers = dict.fromkeys(one for name in (*sorted(inside), *since) for one in by_name[name].numbers)
    return entered, computed.get(out), between, tuple(numbers), frozenset(weights)


class Stored:
    """The tensors of an ONNX file by the names that A has for them, each read when it is asked for.

    Args:
        used: names in B of those that the nodes of a layer use.
    """

    def __init__(self, a: Side, program: OnnxProgram, used: Set[str] = frozenset()) -> None:
        self.program, self._used, self._entries = program, used, dict[str, TensorEntry]()
        names = LayerNames(a.loaded.module)
        for entry in program.net.model.initialisers:
            layer, dot, own = entry.name.rpartition(".")
            if entry.special is None:
                self._entries[f"{names.resolve(layer)}{dot}{own}"] = entry

    def get(self, name: str) -> Tensor | None:
        """Return the tensor; None where B has none of this name."""
        return read_values(self._entries[name]) if name in self._entries else None

    def of_shape(self, shape: tuple[int, ...]) -> Iterator[tuple[bool, Tensor]]:
        """Yield tensors of a shape, up to axes of size 1, or transposed; before each, whether the layer uses it."""
        bare = [size for size in shape if size != 1]
        for one in self._entries.values():
            sizes = [size for size in one.shape if size != 1]
            if sizes in (bare, bare[::-1]) if bare else tuple(one.shape) == shape:
                yield one.name in self._used, read_values(one)


def outputs_of(a: Side, b: Side, args: Arguments) -> tuple[Tensor, Tensor] | None:
    """Return the first output of A and of a program; None where one of them does not take the input."""
    assert b.program is not None
    tap = _Tap(("", 0), ("", 0))
    try:
        a.run(args, tap)
        made = next(iter(b.program.run(b.place(args), b.program.outputs[:1])), None)
    except CannotRunError:
        return None
    return (tap.leaving, made[1].clone()) if tap.leaving is not None and made is not None else None


class _Kept(Intervention):
    """Keeps the values of some outputs, or as many spread over them as fit."""

    def __init__(self, keys: Set[Key]) -> None:
        self._keys, self._most = keys, max(_N_KEPT // max(len(keys), 1), 4096)
        self.values: dict[Key, Tensor] = {}

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        for path, tensor in tensors_in(output):
            if (key := (call.name, call.index, path)) in self._keys:
                flat = tensor.detach().reshape(-1)
                self.values[key] = flat[:: -(-len(flat) // self._most) or 1].clone()
        return output


class OnValues(Intervention):
    """Replaces what layers return by the values of B, so that each layer is given what enters it in B."""

    def __init__(self, values: Mapping[Key, Tensor], spared: Key | None = None) -> None:
        self._values, self._spared = values, spared
        self.distances: dict[Key, Distance] = {}  # how far A's value was from that of B

    def change_output(self, call: Call, module: nn.Module, inputs: Any, output: Any) -> Any:
        return map_tensors(output, lambda path, one: self._replaced((call.name, call.index, path), one))

    def _replaced(self, key: Key, ours: Tensor) -> Tensor:
        theirs = self._values.get(key)
        if theirs is None or theirs.shape != ours.shape or key == self._spared:
            return ours
        self.distances[key] = to_distance(sum_up(ours, theirs))
        return theirs.to(ours, copy=True)


def within_rounding(
    a: Side, rows: Mapping[Key, Distance | LayerDifference], args: Arguments, *forced: Intervention
) -> dict[Key, float]:
    """Return the outputs that differ hardly more than rounding moves them in A, and how far that is by relative L2.

    Monte Carlo arithmetic (Parker, 1997): every operator's result is changed in its last digits, at random. Runs
    are repeated until they explain each difference, and end early where the first is far beyond the rounding.

    Args:
        forced: act after the values are taken.
    """
    plain = _disturbed(a, rows.keys(), args, forced, None)
    moved: dict[Key, float] = {}
    for seed in range(_N_RUNS):
        found = _disturbed(a, rows.keys() - moved.keys(), args, forced, seed)
        for n, (key, row) in enumerate(rows.items()):
            if key in moved or key not in found or found[key].shape != plain[key].shape:
                continue
            own = to_distance(sum_up(plain[key], found[key]))
            if (row.rel_l2 or 0.0) <= _SLACK * own.rel_l2 and (not row.nonfinite or own.nonfinite):
                moved[key] = own.rel_l2
            elif n == 0 and (row.rel_l2 or 0.0) > _FAR * own.rel_l2:
                return moved
        if len(moved) == len(rows):
            break
    return moved


def _disturbed(
    a: Side, keys: Set[Key], args: Arguments, forced: Sequence[Intervention], seed: int | None
) -> dict[Key, Tensor]:
    """Return outputs of A; with a seed, each operator rounds otherwise."""
    kept, random = _Kept(keys), torch.Generator().manual_seed(seed or 0)
    stored = {place_of(one) for one in (*a.loaded.module.parameters(), *a.loaded.module.buffers())}

    def disturb(operator: Any, given: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        places = {place_of(one) for _, one in tensors_in((given, named))}
        for _, one in tensors_in(result):
            is_in_place = any(one is first for first in given[:1]) and place_of(one) not in stored
            is_written = is_in_place or place_of(one) not in places  # and not a view
            if is_written and type(one) is Tensor and one.is_floating_point() and one.itemsize in _NUMBERS:
                (kind, units), eps = _NUMBERS[one.itemsize], torch.finfo(one.dtype).eps
                last = (1 << int(-math.log2(eps)) // 3) - 1  # bits that are zero where nothing was rounded
                noise = units * eps * (2 * torch.rand(one.shape, generator=random).to(one.device) - 1)
                one.mul_(torch.where(one.view(kind) & last != 0, 1 + noise, 1.0).to(one.dtype))

    with kept_random_states():
        torch.manual_seed(a.seed)
        a.run(args, changes=(kept, *forced), mode=None if seed is None else operators_shown_to(disturb))
    return kept.values


def alone_different(
    a: Side, values: Mapping[Key, Tensor], keys: Set[Key], args: Arguments, tolerance: float
) -> set[Key]:
    """Return the outputs of A that differ from those of B even where the layers are given what enters B's."""
    on_b = OnValues(values)
    _disturbed(a, set(), args, (on_b,), None)
    apart = {key: one for key, one in on_b.distances.items() if key in keys and one.exceeds(tolerance)}
    return apart.keys() - within_rounding(a, apart, args, OnValues(values)).keys() if apart else set()


class _Window(_Tap, Intervention):
    """Has a change act between the end of one call and the begin of the next, or leaves one call out."""

    def __init__(
        self, layer: tuple[str, int], last: tuple[str, int], changed: Changed | None, start: str, skipped: str
    ) -> None:
        super().__init__(layer, last)
        self._given: Tensor | None = None
        self._layer, self._changed, self._start, self._skipped = layer, changed, start, skipped
        self.untested: Set[str] = frozenset()  # layers in which the change acts, too
        self._turn(is_on=not start)

    def _turn(self, *, is_on: bool) -> None:
        if self._changed is not None:
            self._changed.is_on = is_on

    def enter(self, call: Call, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        super().enter(call, module, args, kwargs)
        if call.label == self._skipped and args and isinstance(args[0], Tensor):
            self._given = args[0].clone()  # which a layer may change in place
        is_leaf = call.label not in self.untested and not any(module.children())
        if call.name and ((call.name, call.index) == self._layer or is_leaf):
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
    window.untested = evidence.untested
    try:
        a.run(evidence.args, window, changes=(window,), mode=changed)
    except CannotRunError:
        return None
    if not name or is_inside:
        return window.leaving
    return window.entering[evidence.place] if evidence.place < len(window.entering) else None
