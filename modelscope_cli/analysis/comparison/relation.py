"""How two state dicts are related: whether they have other heads, and what became of the other weights."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from modelscope_cli.analysis.comparison.distance import plain_values
from modelscope_cli.analysis.comparison.moved import RELATIONS, find_moved
from modelscope_cli.analysis.comparison.variants import coarse
from modelscope_cli.records.diff import Cause, TensorDifference
from modelscope_cli.records.naming import counted, dtype_name, layer_of, some

# Weights trained from two starts have a cosine about 0, and after fine-tuning mostly one above 0.5.
_RELATED = 0.3
_WITHIN = "equal within the tolerance"
_NOT_FINITE = "not compared, because of NaN or infinity"
_CLOSE = "close to those of A: one is fine-tuned from the other, or both from one start (cosine at least {low:.4g})"
_UNRELATED = "unrelated to those of A (cosine at most {high:.4g})"
# Of weights that are A's but for some values: what became of these
_ZEROED = "the same as in A with {share} of the values set to zero"
_TURNED = "the same as in A with the other sign in {share} of the values"
_PARTLY = "the same as in A except for {share} of the values"
_THE_SAME_ROUNDED = "the same, rounded to"
_NAMED = _CLOSE, _UNRELATED, _ZEROED, _TURNED, _PARTLY
_GRID = "the same as in A, rounded to a grid in B ({levels} distinct values"
_N_AT_A_GLANCE = 512  # values that tell most weights that are not on a grid
_ROUNDED = 2.0**-8  # relative L2 that rounding to bfloat16 stays below


def relations(
    rows: Sequence[TensorDifference], a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> Iterator[Cause]:
    """Yield what is not finite, what differs by shape, then how far the other weights are those of A."""
    if bad := [row for row in rows if row.nonfinite and not row.matched]:
        yield _not_finite(bad, a, b)
    causes, places = find_moved(rows, a, b)
    yield from causes
    weights = [row for row in rows if _is_weight(row)]
    paired = [row for row in weights if row.shape and row.b_shape]
    removed, added = ([row for row in weights if row.status == status] for status in ("removed", "added"))
    reshaped = [row for row in paired if row.status == "reshaped" and row.name not in places]
    heads = [row for row in reshaped if (row.shape or ())[1:] == (row.b_shape or ())[1:]]
    others = [row for row in reshaped if row not in heads]
    ends = [row.shape or row.b_shape or () for row in (*removed[-1:], *added[-1:])]
    is_resized = bool(removed and added) and ends[0][1:] == ends[1][1:] and ends[0] != ends[1]
    is_other = max(len(removed), len(added)) > len(paired)
    if is_other or len(others) > 1:  # a wider layer gives the next one more input channels
        message = f"of the weights, {len(paired)} are in both, {len(reshaped)} of them in another shape; "
        message += f"{len(removed)} only in A, {len(added)} only in B"
        yield Cause("architecture", None, message, "with images, diff compares their outputs")
    elif heads:
        least = min(heads, key=lambda row: row.shape or ())
        also = "".join(f"; {_outputs(row, row)}" for row in heads if row is not least)
        yield _head(_outputs(least, least) + also, *heads)
    elif is_resized and len(removed + added) < len(paired):
        heads = [removed.pop(), added.pop()]
        yield _head(f"{_outputs(*heads)}, where it is {layer_of(heads[1].name)}", *heads)
    positions = [row for row in rows if row.status == "reshaped" and "pos" in row.name]
    for row in (*others, *positions) if not is_other and len(others) < 2 else ():
        sizes = ["x".join(map(str, shape)) for shape in (row.shape or (), row.b_shape or ())]
        what = "another number of input channels" if row in others else "images or patches of another size"
        yield Cause("input", layer_of(row.name), f"{row.name} is {sizes[0]} in A and {sizes[1]} in B", what)
    if rest := [row for row in paired if row not in reshaped]:
        alone = () if is_other else (removed, added)
        layers = [
            {layer_of(row.name) for row in some_rows if row.status in ("changed", "retyped")}
            for some_rows in (rest, rows)
        ]
        layer = next((one.pop() for one in layers if len(one) == 1), None)
        yield Cause("backbone" if heads else "weights", layer, _kinship(rest, alone, rows, places, a, b), "")
    status = {row.name: row.status for row in rows}
    moved = [row for row in rows if row.name.endswith(".running_var") and row.status == "changed"]
    if frozen := [row for row in moved if status.get(f"{layer_of(row.name)}.weight") == "same"]:
        by = sorted(row.rel_l2 or 0.0 for row in frozen)
        moves = " to ".join(dict.fromkeys(f"{100 * one:.2g} %" for one in (by[0], by[-1])))
        message = f"weights equal, but running_var changed by {moves}: {_span(frozen)}"
        yield Cause("norms", layer_of(frozen[0].name), message, "in train mode while frozen?")


def _not_finite(rows: Sequence[TensorDifference], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Cause:
    """Return how many values are NaN or infinite on each side of rows where that differs."""
    texts = []
    named = [row.name for row in rows], [row.b_name or row.name for row in rows]
    for side, names, tensors in zip("AB", named, (a, b), strict=True):
        values = [plain_values(tensors[name]) for name in names]
        n_nan = sum(int(one.isnan().sum()) for one in values)
        n_inf = sum(int((~one.isfinite()).sum()) for one in values) - n_nan
        counts = " and ".join(f"{n:,} {what}" for n, what in ((n_nan, "NaN"), (n_inf, "infinite")) if n)
        bad = some(name for name, one in zip(names, values, strict=True) if not one.isfinite().all())
        texts.append(f"{side} has {counts} values in {bad}" if counts else f"{side} has none there")
    texts.sort(key=lambda text: text.endswith("none there"))
    return Cause("not_finite", layer_of(rows[0].name), ", ".join(texts), "")


def _is_weight(row: TensorDifference) -> bool:
    """Tell whether a tensor is a weight by its name, or without a layer, as in ONNX files, by its axes."""
    n_axes = len(row.shape or row.b_shape or ())
    return n_axes > 1 and (row.name.endswith("weight") or (n_axes != 3 and not layer_of(row.name)))


def _head(message: str, *rows: TensorDifference) -> Cause:
    layers = dict.fromkeys(layer_of(row.name) for row in rows)
    options = " ".join(f"--exclude {shlex.quote(layer)}" for layer in layers)
    return Cause("head", layer_of(rows[0].name), message, f"{options} compares the rest")


def _outputs(ours: TensorDifference, theirs: TensorDifference) -> str:
    (n, *rest), (n_theirs, *_) = ours.shape or (0,), theirs.b_shape or (0,)
    unit = "classes" if len(rest) == 1 else "output channels"
    return f"{layer_of(ours.name)} has {n} {unit} in A and {n_theirs} in B"


def _kinship(
    weights: Sequence[TensorDifference],
    alone: Sequence[Sequence[TensorDifference]],
    rows: Sequence[TensorDifference],
    places: Mapping[str, str],
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
) -> str:
    """Return how many weights are equal, of one start, unrelated, and only in A or B."""
    kept = [row for row in weights if not (row.name in places or row.nonfinite)]
    changed = [row for row in kept if row.status in ("changed", "retyped")]
    names, n = {row.name for row in weights} | {*places}, len(weights) + max(map(len, alone), default=0)
    rest = [row for row in rows if row.status in ("changed", "retyped") and row.name not in names]
    kinds = ("equal", _WITHIN, *RELATIONS.values(), _CLOSE, _UNRELATED)
    groups: dict[str, list[TensorDifference]] = {kind: [] for kind in kinds}
    rounded = f"{_THE_SAME_ROUNDED} {to}" if (to := rounding_of(changed, a, b)) else ""
    levels: list[int] = []
    for row in weights:
        relation = rounded if rounded and row in changed else places.get(row.name) or _relation(row)
        if relation in (_CLOSE, _UNRELATED, _NOT_FINITE):
            relation = _partly(row, a[row.name], b[row.b_name or row.name]) or relation
        if relation == _CLOSE and (grid := _levels(a[row.name], b[row.b_name or row.name])):
            levels.append(grid[0])
            relation = f"{_GRID}{grid[1]})"
        groups.setdefault(relation, []).append(row)
    text = "; ".join(_counted(group, n, relation, levels) for relation, group in groups.items() if group)
    for side, only in zip("AB", alone, strict=False):
        text += f"; {len(only)} only in {side}: {some(row.name for row in only)}" if only else ""
    counters = [(int(a[x]), int(b[x])) for x in a if x.endswith("num_batches_tracked") and x in b]
    n_batches = max(counters, default=(0, 0))
    if groups[_CLOSE] and any(n_batches):
        text += "; the norms counted {:,} batches in A and {:,} in B".format(*n_batches)
    if len(groups[_CLOSE]) > 1:
        most = sorted(groups[_CLOSE], key=lambda row: -(row.rel_l2 or 0.0))[:3]
        text += f"; most {', '.join(f'{row.name} (relative L2 {row.rel_l2:.2g})' for row in most)}"
    others = f", {counted(len(rest), 'other tensor')} changed: {_span(rest)}" if rest and not changed else ""
    return text + others


def _partly(row: TensorDifference, a: Tensor, b: Tensor) -> str | None:
    """Return what became of some values of A; None where most are others. A part of one channel names that."""
    a, b = plain_values(a).cpu().to(b.dtype), plain_values(b).cpu()
    differ = a != b
    if not differ.any():  # in this dtype
        return None
    if not b[differ].count_nonzero():
        return _ZEROED + ", as of pruning" * (not (a[b != 0].abs() < a[differ].abs().amax()).any())
    if 2 * (row.differing or 0) > (row.numel or 0):
        return None
    channels = differ.flatten(1).any(1).nonzero().flatten().tolist()
    where = f", all in output channel {channels[0]}" * (len(channels) == 1)
    return (_TURNED if torch.equal(a[differ], -b[differ]) else _PARTLY) + where


def _levels(a: Tensor, b: Tensor) -> tuple[int, str] | None:
    """Return how many values each part of `b` has if it is `a` rounded to few: it never falls where `a` rises."""
    a, b = plain_values(a).cpu().flatten(1), plain_values(b).cpu().flatten(1)
    parts = {b.numel(): "", b.shape[1]: " for each output channel"}
    for size, part in (*parts.items(), *((n, f" for each {n} inputs") for n in (128, 64, 32))):
        if size in parts or b.shape[1] % size == 0:
            x, y = a.reshape(-1, size), b.reshape(-1, size)
            glance = y[0, :_N_AT_A_GLANCE][x[0, :_N_AT_A_GLANCE].argsort()]
            if bool((glance.diff() < 0).any()):
                continue
            ordered = y.gather(1, x.argsort(1))
            steps = ordered.diff(dim=1)
            n_levels = int((steps != 0).sum(1).max()) + 1
            # A grid has few places, rounded floats have many
            least = steps.where(steps > 0, math.inf).amin(1)
            is_even = bool((ordered[:, -1] - ordered[:, 0] <= 256 * least).all())
            n_equal = int(((steps == 0) & (ordered[:, 1:] != 0)).sum())  # beside zeros, as of pruning
            if (
                is_even
                and 1 < n_levels <= 256
                and 100 * n_equal > max(200, int(b.count_nonzero()))
                and bool((steps >= 0).all())
            ):
                return n_levels, part
    return None


def rounding_of(
    changed: Sequence[TensorDifference], a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> str | None:
    """Return to which dtype and in which side changed tensors are rounded; folded ones are judged by distance."""
    if not changed or any(row.rel_l2 is None or row.rel_l2 >= _ROUNDED for row in changed):
        return None
    ordered = sorted(changed, key=lambda row: -(row.numel or 0))
    pairs = [(a[row.name], b[row.b_name or row.name], row.matched) for row in ordered]
    for side, one in (("A", pairs[0][0]), ("B", pairs[0][1])):
        kind = getattr(torch, coarse(one) or dtype_name(one.dtype))
        if all(matched or torch.equal(x.to(kind), y.to(kind)) for x, y, matched in pairs):
            return f"{dtype_name(kind)} in {side}"
    return None


def _relation(row: TensorDifference) -> str:
    cosine = row.cosine or 0.0
    chance = 3 * math.prod(row.shape or ()) ** -0.5  # three standard deviations
    if row.status not in ("changed", "retyped"):
        return _WITHIN if row.differing else "equal"
    if row.nonfinite:
        return _NOT_FINITE
    return _CLOSE if cosine > max(_RELATED, chance) else _UNRELATED


def _counted(group: Sequence[TensorDifference], n: int, relation: str, levels: Sequence[int]) -> str:
    cosines = [row.cosine or 0.0 for row in group]
    which = f"all {n} weights" if len(group) == n > 1 else f"{len(group)} of {counted(n, 'weight')}"
    is_single = len(group) == 1 and relation.startswith(_THE_SAME_ROUNDED)
    is_named = len(group) < n and (is_single or relation.startswith(_NAMED))
    share = sum(row.differing or 0 for row in group) / max(sum(row.numel or 0 for row in group), 1)
    bounds = {"low": math.floor(min(cosines) * 1e4) / 1e4, "high": math.ceil(max(cosines) * 1e4) / 1e4}
    ends = " to ".join(dict.fromkeys(map(str, (min(levels), max(levels))))) if levels else ""
    text = relation.format(**bounds, levels=ends, share=f"{100 * share:.2g} %")
    return f"{which} {'is' if len(group) == 1 else 'are'} {text}" + f": {_span(group)}" * is_named


def _span(rows: Sequence[TensorDifference]) -> str:
    """Return the first and the last layer of some tensors, or their names where these have no layer."""
    return " to ".join(dict.fromkeys(layer_of(row.name) or row.name for row in (rows[0], rows[-1])))
