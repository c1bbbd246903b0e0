"""How two state dicts are related: whether they have other heads, and what became of the other weights."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from modelscope_cli.analysis.comparison.variants import coarse
from modelscope_cli.records.diff import Cause, TensorDifference
from modelscope_cli.records.naming import counted, layer_of

# Weights trained from two starts have a cosine about 0, and after fine-tuning mostly one above 0.5.
_RELATED = 0.3
_PARALLEL = 1 - 1e-9  # the cosine of a multiple, rounded to float32
_SCALED = "the same as in A up to a factor"
_CLOSE = "close to those of A, as after fine-tuning (cosine at least {low:.4g})"
_UNRELATED = "unrelated to those of A (cosine at most {high:.4g})"
_ROUNDED = 2.0**-8  # relative L2 that rounding to bfloat16 stays below


def relations(rows: Sequence[TensorDifference], b: Mapping[str, Tensor]) -> Iterator[Cause]:
    """Yield what differs by shape, such as the head, then how far the other weights are those of A."""
    weights = [row for row in rows if row.name.endswith("weight") and len(row.shape or row.b_shape or ()) > 1]
    paired = [row for row in weights if row.shape and row.b_shape]
    removed, added = ([row for row in weights if row.status == status] for status in ("removed", "added"))
    reshaped = [row for row in paired if row.status == "reshaped"]
    heads = [row for row in reshaped if (row.shape or ())[1:] == (row.b_shape or ())[1:]]
    others = [row for row in reshaped if row not in heads]
    is_other = max(len(removed), len(added)) > len(paired)
    if is_other or len(others) > 1:  # a wider layer gives the next one more input channels
        message = f"of the weights, {len(paired)} are in both, {len(reshaped)} of them in another shape; "
        message += f"{len(removed)} only in A, {len(added)} only in B"
        yield Cause("architecture", None, message, "give two versions of one model")
    elif heads:
        least = min(heads, key=lambda row: row.shape or ())
        also = "".join(f"; {_outputs(row, row)}" for row in heads if row is not least)
        yield _head(_outputs(least, least) + also, *heads)
    elif removed and added and len(removed) + len(added) < len(paired):
        last = removed[-1], added[-1]
        yield _head(f"{_outputs(*last)}, where it is {layer_of(last[1].name)}", *last)
    positions = [row for row in rows if row.status == "reshaped" and "pos" in row.name]
    for row in (*others, *positions) if not is_other and len(others) < 2 else ():
        sizes = ["x".join(map(str, shape)) for shape in (row.shape or (), row.b_shape or ())]
        what = "another number of input channels" if row in others else "images or patches of another size"
        yield Cause("input", layer_of(row.name), f"{row.name} is {sizes[0]} in A and {sizes[1]} in B", what)
    kind = "backbone" if heads or (removed and added) else "weights"
    if rest := [row for row in paired if row.status != "reshaped"]:
        yield Cause(kind, None, _kinship(rest, rows, b), "")


def _head(message: str, *rows: TensorDifference) -> Cause:
    layers = dict.fromkeys(layer_of(row.name) for row in rows)
    options = " ".join(f"--exclude {shlex.quote(layer)}" for layer in layers)
    return Cause("head", layer_of(rows[0].name), message, f"{options} compares the rest")


def _outputs(ours: TensorDifference, theirs: TensorDifference) -> str:
    (n, *rest), (n_theirs, *_) = ours.shape or (0,), theirs.b_shape or (0,)
    unit = "classes" if len(rest) == 1 else "output channels"
    return f"{layer_of(ours.name)} has {n} {unit} in A and {n_theirs} in B"


def _kinship(
    weights: Sequence[TensorDifference], rows: Sequence[TensorDifference], b: Mapping[str, Tensor]
) -> str:
    """Return how many of the weights that both have are equal, of one start, and unrelated."""
    changed = [row for row in weights if row.status in ("changed", "retyped")]
    names, n = {row.name for row in weights}, len(weights)
    rest = [row for row in rows if row.status in ("changed", "retyped") and row.name not in names]
    groups: dict[str, list[TensorDifference]] = {"equal": [], _SCALED: [], _CLOSE: [], _UNRELATED: []}
    furthest = max(changed, key=lambda row: row.rel_l2 or 0.0, default=None)
    is_near = furthest is not None and (furthest.rel_l2 or 0.0) < _ROUNDED
    if furthest is not None and is_near and (dtype := coarse(b[furthest.b_name or furthest.name])):
        return _counted(changed, n, f"the same as in A, rounded to {dtype}")
    for row in weights:
        groups[_relation(row)].append(row)
    text = "; ".join(_counted(group, n, relation) for relation, group in groups.items() if group)
    others = f", {counted(len(rest), 'other tensor')} changed: {_span(rest)}" if rest and not changed else ""
    return text + others


def _relation(row: TensorDifference) -> str:
    cosine = row.cosine or 0.0
    chance = 3 * math.prod(row.shape or ()) ** -0.5  # three standard deviations
    if row.status not in ("changed", "retyped"):
        return "equal"
    return _SCALED if abs(cosine) > _PARALLEL else _CLOSE if cosine > max(_RELATED, chance) else _UNRELATED


def _counted(group: Sequence[TensorDifference], n: int, relation: str) -> str:
    cosines = [row.cosine or 0.0 for row in group]
    which = f"all {n} weights" if len(group) == n > 1 else f"{len(group)} of {counted(n, 'weight')}"
    where = f": {_span(group)}" * (len(group) < n and relation in (_SCALED, _CLOSE, _UNRELATED))
    verb = "is" if len(group) == 1 else "are"
    return f"{which} {verb} {relation.format(low=min(cosines), high=max(cosines))}{where}"


def _span(rows: Sequence[TensorDifference]) -> str:
    """Return the first and the last layer of some tensors."""
    return " to ".join(dict.fromkeys(layer_of(row.name) for row in (rows[0], rows[-1])))
