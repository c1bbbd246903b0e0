"""Which value of a program is the output of which layer of A."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.comparison.moved import CODES
from modelscope_cli.analysis.comparison.programs import LayersInOrder, Program, Value
from modelscope_cli.analysis.comparison.variants import apart
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.forward_passes import StreamedOutput
from modelscope_cli.hooks.session import Call
from modelscope_cli.models.onnx_net import OnnxNet
from modelscope_cli.records.naming import parents_of
from modelscope_cli.records.run import Arguments

Key = tuple[str, int, str]  # of an output of A: layer, call, path

_N_SAMPLES = 512  # values by which two tensors are recognised as the same
_ALIKE = 1e-3  # relative distance of samples below which values count as the same
MOVING = {"Cast", "Slice", "Split", "Gather", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze"}
_FOLDING = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class Seen:
    """One tensor of the first batch: its shape, and values spread over it."""

    shape: tuple[int, ...]
    sample: Tensor

    @classmethod
    def of(cls, tensor: Tensor, n_samples: int = _N_SAMPLES) -> "Seen":
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // n_samples)
        return cls(tuple(tensor.shape), flat[::step][:n_samples].cpu().to(torch.float64, copy=True))

    def distance(self, other: "Seen") -> float:
        """Return |a - b| / |a| of the samples; infinite for another shape."""
        return apart(other.sample, self.sample) if self.shape == other.shape else math.inf


@dataclass(slots=True)
class Matching:
    """Which value of B is compared with which output of A."""

    calls: dict[Key, Call]  # the outputs of A, in execution order
    values: dict[Key, str] = field(default_factory=dict)  # name of the value of B by output of A
    # How an output was matched, or why it was not, where that is not by name alone
    remarks: dict[Key, str] = field(default_factory=dict)
    by_value: int = 0  # how many layers were matched by shape and value

    def stream(
        self, program: Program, place: Callable[[Arguments], Arguments], args: Arguments
    ) -> Generator[StreamedOutput]:
        """Run B and yield its values under the names of A; `place` moves the arguments to it."""
        keys: dict[str, list[Key]] = defaultdict(list)
        for key in self.calls:
            if key in self.values:
                keys[self.values[key]].append(key)
        for name, tensor in program.run(place(args), list(keys)):
            for key in keys[name]:
                yield StreamedOutput(self.calls[key], key[2], tensor)


class LayerNames:
    """Finds the layer of a model that an exporter means: by any path that leads to it, with its calls numbered."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self.is_exported = model, isinstance(model, OnnxNet)
        self._names = {id(module): name for name, module in model.named_modules()}
        parents = Counter(id(child) for module in model.modules() for child in module.children())
        self._shared = {name: layer for name, layer in model.named_modules() if parents[id(layer)] > 1}

    def resolve(self, path: str) -> str:
        """Return the first name of the layer at a path, under which hooks find it; the path itself for none.

        Older exporters write `relu_1` where `relu` is called again, and a shared layer by its first name below
        whichever layer calls it.
        """
        layer = self._model
        for part in path.split(".") if path else ():
            base, _, number = part.rpartition("_")
            names = (part, base) if number.isdecimal() else (part,)
            found = (one for name in names for one in (getattr(layer, name, None), self._shared.get(name)))
            child = next((one for one in found if isinstance(one, nn.Module)), None)
            if child is None:
                return path
            layer = child
        return self._names[id(layer)]


def match(
    outputs: Iterable[StreamedOutput], program: Program, args: Arguments, names: LayerNames
) -> Matching:
    """Run both sides once and find the value of B for every output of A.

    By the modules that nodes were exported from; of several values that leave one call of a module, the one of
    A's shape that is nearest. Where no node names a module, or A is exported too, by shape and value in order.
    """
    seen: dict[Key, Seen] = {}
    matching = Matching({})
    for output in outputs:
        matching.calls[output.key], seen[output.key] = output.call, Seen.of(output.tensor)
        del output
    wanted = dict.fromkeys((*(value.name for value in program.values), *program.outputs))
    codes = CODES if program.is_quantised else ()  # which are not the outputs of layers
    computed = program.run(args, list(wanted))
    values = {name: Seen.of(tensor) for name, tensor in computed if tensor.dtype not in codes}
    calls = _calls(program.values, names)
    program.values = tuple(
        replace(value, modules=tuple(map(names.resolve, value.modules))) for value in program.values
    )
    _match_outputs(matching, seen, program, values)
    layers = {key: one for key, one in seen.items() if key[0]}
    has_scopes = any(
        value.modules and value.modules[-1] == key[0] for key in layers for value in program.values
    )
    if has_scopes and not (names.is_exported or isinstance(program, LayersInOrder)):
        _match_scopes(matching, layers, program, values, calls)
    else:
        _match_in_order(matching, layers, program, values)
    if not matching.values:
        message = "A and B have no layer and no output in common, by name, shape or value"
        raise CannotRunError(message, "give a model that was exported from A")
    _note_folding(matching, seen, program, values)
    return matching


def _match_outputs(
    matching: Matching, seen: dict[Key, Seen], program: Program, values: dict[str, Seen]
) -> None:
    ours = [key for key in seen if not key[0]]
    theirs = [name for name in program.outputs if name in values]
    for n, key in enumerate(ours):
        alike = [name for name in theirs if values[name].shape == seen[key].shape]
        if len(ours) == len(theirs):
            matching.values[key] = theirs[n]
        elif alike:
            matching.values[key] = min(alike, key=lambda name: seen[key].distance(values[name]))
            matching.remarks[key] = f"by shape and value: output '{matching.values[key]}'"
        else:
            matching.remarks[key] = f"B has {len(theirs)} outputs, none of this shape"


def _calls(values: Sequence[Value], names: LayerNames) -> dict[str, list[list[Value]]]:
    """Return the values of each run of consecutive nodes of a layer, by the first name of the layer."""
    calls: dict[str, list[list[Value]]] = defaultdict(list)
    before: set[str] = set()
    for value in values:
        for path in (paths := set(value.modules)):
            name = names.resolve(path)
            if path not in before:
                calls[name].append([])
            calls[name][-1].append(value)
        before = paths or before
    return calls


def _split(groups: list[list[Value]], n_calls: int) -> list[list[Value]] | None:
    """Return the nodes of each call; None if the nodes do not belong to this many calls."""
    if len(groups) == n_calls or n_calls == 1:
        return groups
    size, rest = divmod(sum(map(len, groups)), n_calls)
    if rest or not size or any(len(group) % size for group in groups):
        return None
    pieces = [group[at : at + size] for group in groups for at in range(0, len(group), size)]
    return pieces if len({tuple(one.operator for one in piece) for piece in pieces}) == 1 else None


def _match_scopes(
    matching: Matching,
    layers: dict[Key, Seen],
    program: Program,
    values: dict[str, Seen],
    calls: dict[str, list[list[Value]]],
) -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for value in program.values:
        for source in value.inputs:
            users[source].add(value.name)
    called: dict[str, set[int]] = defaultdict(set)
    for name, index, _ in layers:
        called[name].add(index)

    def leaving(members: Sequence[Value]) -> list[str]:
        inside = {one.name: one for one in members if one.name in values}
        return [name for name in inside if name in program.outputs or users[name] - inside.keys()]

    for key, one in layers.items():
        groups, kind = calls.get(key[0], []), matching.calls[key].type
        if kind.startswith(("Conv", "Linear")) or "Norm" in kind:  # which a cast or slice in its scope is not
            groups = [group for group in groups if {x.operator for x in group} - MOVING - {"Pad"}]
        split = _split(groups, len(called[key[0]]))
        if split is not None and len(split) > 1 and len(called[key[0]]) > 1:
            groups = [split[sorted(called[key[0]]).index(key[1])]]
        names = [name for group in groups for name in leaving(group)]
        alike = [name for name in names if values[name].shape == one.shape]
        if program.is_quantised and alike:  # the bias of a last layer is added under the name of the output
            alike += [name for name in program.outputs if name in values and values[name].shape == one.shape]
        nearest = min(reversed(alike), key=lambda name: one.distance(values[name]), default=None)
        if nearest is None and len(groups) == 1 and kind.startswith(("Conv", "Linear")):
            sized = [name for name in leaving(groups[0]) if len(values[name].shape) == len(one.shape)]
            nearest = sized[0] if len(sized) == 1 else None  # of another width: the row says so
        if nearest is not None and (split is not None or one.distance(values[nearest]) < _ALIKE):
            matching.values[key] = nearest
        elif groups and split is None:
            n = len(called[key[0]])
            matching.remarks[key] = f"called {n} times in A, {len(groups)} in B: no matching value"
        else:
            matching.remarks[key] = "not in B by name" if not groups else "no matching value in B"


def _match_in_order(
    matching: Matching, layers: dict[Key, Seen], program: Program, values: dict[str, Seen]
) -> None:
    """Align both sequences so that most is alike: values first, then the kind of operation, then the shape."""
    ours = list(layers.items())
    theirs = [value for value in program.values if value.name in values]
    twins = program.twins if isinstance(program, LayersInOrder) else {}
    taken = {*twins.values()}
    gains = [[0.0] * len(theirs) for _ in ours]
    for i, (key, one) in enumerate(ours):
        kind = matching.calls[key].type.lower()
        for j, value in enumerate(theirs):
            layer = value.modules[-1] if value.modules and twins else ""
            if (key[0] in twins or layer in taken) and twins.get(key[0]) != layer:
                continue  # another layer has its weights
            if values[value.name].shape == one.shape:
                is_kind = value.operator.lower() in kind or kind.startswith(value.operator.lower())
                gains[i][j] = 1 + 10 * (one.distance(values[value.name]) < _ALIKE) + 0.5 * is_kind
    rows = [[0.0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i, gained in enumerate(gains):
        row, above = rows[i + 1], rows[i]
        for j, gain in enumerate(gained):
            row[j + 1] = max(above[j + 1], row[j], above[j] + gain if gain else 0.0)
    i, j = len(ours), len(theirs)
    while i and j:
        if gains[i - 1][j - 1] and rows[i][j] == rows[i - 1][j - 1] + gains[i - 1][j - 1]:
            matching.values[ours[i - 1][0]] = theirs[j - 1].name
            matching.remarks[ours[i - 1][0]] = f"by shape and value: '{theirs[j - 1].name}'"
            matching.by_value += 1
            i, j = i - 1, j - 1
        elif rows[i][j] == rows[i][j - 1]:
            j -= 1
        else:
            i -= 1
    for key in layers:
        if key not in matching.values:
            what = f"'{twins[key[0]]}' of B has its weights, but" if key[0] in twins else "B has"
            matching.remarks[key] = f"{what} no value of its shape in this position"


def _note_folding(
    matching: Matching, seen: dict[Key, Seen], program: Program, values: dict[str, Seen]
) -> None:
    """Compare after the norm where an exporter folded the norm into the layer before it, and say so."""
    operators, is_quantised = {one.name: one.operator for one in program.values}, program.is_quantised
    keys = [key for key in matching.calls if key[0]]
    for key, following in itertools.pairwise(keys):
        norm = _norm_around(following, keys, matching) or following
        kinds = matching.calls[key].type, matching.calls[norm].type
        name, own = matching.values.get(key), matching.values.get(norm)
        value = own or name
        if value is None or not kinds[0].startswith(("Conv", "Linear")):
            continue
        nearest = _ALIKE
        if norm != following:  # its own value is that of the layers in it
            made = {one.operator for one in program.values if one.modules and one.modules[-1] == norm[0]}
            is_folded = bool(made or name) and not made - {*_FOLDING} - MOVING
        else:
            is_last = is_quantised or operators.get(value) in _FOLDING  # else scales and a bias follow
            is_folded = "BatchNorm" in kinds[1] and not (name and own) and is_last
            nearest = seen[norm].distance(values[value])
            nearest = nearest / 2 if is_quantised else min(nearest, _ALIKE)
        if not is_folded or (name and seen[key].distance(values[name]) < nearest):
            continue  # the norm is missing
        matching.values[norm] = value
        matching.values.pop(key, None)
        by_value = matching.remarks.get(norm if own else key, "") * (norm == following)
        matching.remarks[key] = f"folded into {norm[0]}"
        folded = f"with {key[0]} folded in"
        matching.remarks[norm] = f"{by_value}, {folded}" if by_value.startswith("by shape") else folded


def _norm_around(inner: Key, keys: Sequence[Key], matching: Matching) -> Key | None:
    """Return the call of a batch norm that holds other layers, such as timm's with their activation, around one."""
    around = set(parents_of(inner[0]))
    later = keys[keys.index(inner) :]
    return next((key for key in later if key[0] in around and "Norm" in matching.calls[key].type), None)
