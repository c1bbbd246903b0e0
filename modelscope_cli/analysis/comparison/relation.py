"""How two state dicts are related: whether they have other heads, and what became of the other weights."""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import torch
from torch import Tensor

from modelscope_cli.analysis.comparison.distance import plain_values
from modelscope_cli.analysis.comparison.moved import RELATIONS, find_moved
from modelscope_cli.analysis.comparison.variants import coarse
from modelscope_cli.records.diff import Cause, TensorDifference
from modelscope_cli.records.naming import cells_of, counted, dtype_name, layer_of, some

# Weights trained from two starts have a cosine about 0, and after fine-tuning mostly one above 0.5.
_RELATED = 0.3
_WITHIN = "equal within the tolerance"
_FOLDED = "as in A with a norm folded in"
_NOT_FINITE = "not compared, because of NaN or infinity"
_CLOSE = "close to those of A, as after fine-tuning (cosine at least {low:.4g})"
_UNRELATED = "unrelated to those of A (cosine at most {high:.4g})"
# Of weights that are A's but for some values: what became of these
_ZEROED = "the same as in A with {share} of the values set to zero"
_PARTLY = "the same as in A except for {share} of the values"
_THE_SAME_ROUNDED = "the same, rounded to"
_NAMED = "not compared", _CLOSE, _UNRELATED, _ZEROED, _PARTLY
_FLOATS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32)
_NAMES = ("float16", "bfloat16", "float8 (e4m3)", "float8 (e5m2)", "float32")
_N_AT_A_GLANCE = 512  # values that tell most weights that are not rounded
_N_AT_ONCE = 1 << 20  # values that are sorted together
_FEWEST = 8  # values, of which fewer are equidistant by chance
_ROUNDED = 2.0**-8  # relative L2 that rounding to bfloat16 stays below


def relations(
    rows: Sequence[TensorDifference], a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> Iterator[Cause]:
    """Yield what is not finite, what differs by shape, then how far the other weights are those of A."""
    a, b = ({x: y.dequantize() if y.is_quantized else y for x, y in one.items()} for one in (a, b))
    packed = _packed(rows)
    for status, side in (("added", "B"), ("removed", "A")):
        if layers := [layer for layer, own in packed.items() if own == status]:
            text = f"quantised in {side} (_packed_params), and not compared: {some(layers)}"
            yield Cause("quantised", layers[0], text, "")
    rest = [row for row in rows if layer_of(row.name) not in packed]
    yield from _relations_of_read(rest, a, b, bool(packed))


def _relations_of_read(
    rows: Sequence[TensorDifference], a: Mapping[str, Tensor], b: Mapping[str, Tensor], has_others: bool
) -> Iterator[Cause]:
    if bad := [row for row in rows if row.nonfinite and not row.matched]:
        yield _not_finite(bad, a, b)
    causes, places = find_moved(rows, a, b)
    yield from causes
    rounded = roundings_of(rows, a, b)
    weights = [row for row in rows if _is_weight(row)]
    paired = [row for row in weights if row.shape and row.b_shape]
    removed, added = ([row for row in weights if row.status == status] for status in ("removed", "added"))
    reshaped = [row for row in paired if row.status == "reshaped" and row.name not in places]
    heads = [row for row in reshaped if (row.shape or ())[1:] == (row.b_shape or ())[1:]]
    others = [row for row in reshaped if row not in heads]
    ends = [row.shape or row.b_shape or () for row in (*removed[-1:], *added[-1:])]
    is_resized = bool(removed and added) and ends[0][1:] == ends[1][1:] and ends[0] != ends[1]
    is_other = max(len(removed), len(added)) > len(paired)
    widths = {(row.shape[0], row.b_shape[0]) for row in reshaped if row.shape and row.b_shape}
    narrowed = any(_is_carried(row, widths) for row in others)
    if narrowed and not is_other:
        yield _channels(reshaped, a, b)
    elif is_other or len(others) > 1:
        message = f"of the weights, {len(paired)} are in both, {len(reshaped)} of them with another shape; "
        message += f"{len(removed)} only in A, {len(added)} only in B"
        yield Cause("architecture", None, message, "give images to compare their outputs")
    elif heads:
        least = min(heads, key=lambda row: row.shape or ())
        also = "".join(f"; {_outputs(row, row)}" for row in heads if row is not least)
        yield _head(_outputs(least, least) + also, *heads)
    elif is_resized and len(removed + added) < len(paired):
        heads = [removed.pop(), added.pop()]
        yield _head(f"{_outputs(*heads)}, where it is {layer_of(heads[1].name)}", *heads)
    positions = [row for row in rows if row.status == "reshaped" and "pos" in row.name]
    for row in (*others, *positions) if not (is_other or narrowed or len(others) > 1) else ():
        sizes = ["x".join(map(str, shape)) for shape in (row.shape or (), row.b_shape or ())]
        what = f"a different {'number of input channels' if row in others else 'size of images or patches'}"
        yield Cause("input", layer_of(row.name), f"{row.name} is {sizes[0]} in A and {sizes[1]} in B", what)
    if not is_other and (text := _beside(rows, weights, positions)):
        yield Cause("tensors", None, text, "")
    if rest := [row for row in paired if row not in reshaped]:
        alone = () if is_other else (removed, added)
        layers = [
            {layer_of(row.name) for row in some_rows if row.status in ("changed", "retyped")}
            for some_rows in (rest, rows)
        ]
        layer = next((one.pop() for one in layers if len(one) == 1), None)
        noun = "other weight" if reshaped or has_others else "weight"
        text = _kinship(rest, alone, rows, places, rounded, a, b, noun)
        yield Cause("backbone" if heads else "weights", layer, text, "")
    status = {row.name: row.status if row.name not in rounded else "rounded" for row in rows}
    moved = [row for row in rows if row.name.endswith(".running_var") and status[row.name] == "changed"]
    if frozen := [row for row in moved if status.get(f"{layer_of(row.name)}.weight") == "same"]:
        by = sorted(row.rel_l2 or 0.0 for row in frozen)
        moves = " to ".join(dict.fromkeys(f"{float(f'{100 * one:.2g}'):,g} %" for one in (by[0], by[-1])))
        message = f"weights equal, but running_var changed by {moves}: {_span(frozen)}"
        yield Cause("norms", layer_of(frozen[0].name), message, "frozen norms may have been in train mode")


def _not_finite(rows: Sequence[TensorDifference], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Cause:
    """Return how many values are NaN or infinite on each side of rows where that differs."""
    texts = []
    named = [row.name for row in rows], [row.b_name or row.name for row in rows]
    for side, names, tensors in zip("AB", named, (a, b), strict=True):
        values = [plain_values(tensors[name]) for name in names]
        n_nan = sum(int(one.isnan().sum()) for one in values)
        n_inf = sum(int((~one.isfinite()).sum()) for one in values) - n_nan
        kinds = (n_nan, "NaN"), (n_inf, "infinite")
        counts = " and ".join(counted(n, f"{what} value") for n, what in kinds if n)
        bad = some(name for name, one in zip(names, values, strict=True) if not one.isfinite().all())
        texts.append(f"{side} has {counts} in {bad}" if counts else f"{side} has none there")
    texts.sort(key=lambda text: text.endswith("none there"))
    return Cause("not_finite", layer_of(rows[0].name), ", ".join(texts), "")


def _packed(rows: Sequence[TensorDifference]) -> dict[str, str]:
    """Return the layers whose weights one side has quantised where no tensor can be read, and what it has alone."""
    alone = {row.name: row.status for row in rows if row.status in ("added", "removed")}
    points = {layer_of(name): status for name, status in alone.items() if name.endswith(".zero_point")}
    return {x: status for x, status in points.items() if alone.get(f"{x}.weight", status) != status}


def _beside(
    rows: Sequence[TensorDifference], weights: Sequence[TensorDifference], told: Sequence[TensorDifference]
) -> str:
    """Return which tensors but weights one side lacks, or has in another shape, where no weight says so."""
    # With a layer that one side alone has goes the norm beside it, and with another width all norms
    blocks = {(layer_of(layer_of(row.name)), row.status) for row in weights}
    is_wider = any(row.status == "reshaped" for row in weights)
    cells = [(row.name, cells_of(row.name, row.shape or (), row.b_shape or ())) for row in rows]
    texts = [f"{name} has {' in A and '.join(kinds)} in B" for name, kinds in cells if kinds][:1]
    whats = {"removed": "missing in B", "added": "only in B", "reshaped": "of another shape"}
    for status, what in whats.items():
        group = [row for row in rows if row.status == status and row not in told]
        group = [row for row in group if (layer_of(layer_of(row.name)), status) not in blocks]
        if group and not (is_wider and status == "reshaped"):
            names = (row.name + f" ({row.matched})" * bool(row.matched) for row in group)
            texts.append(f"{some(names)} {'is' if len(group) == 1 else 'are'} {what}")
    return "; ".join(texts)


def _is_weight(row: TensorDifference) -> bool:
    """Tell whether a tensor is a weight by its name, or without a layer, as in ONNX files, by its axes."""
    n_axes = len(row.shape or row.b_shape or ())
    return n_axes > 1 and (row.name.endswith("weight") or (n_axes != 3 and not layer_of(row.name)))


def _head(message: str, *rows: TensorDifference) -> Cause:
    layers = dict.fromkeys(layer_of(row.name) for row in rows)
    options = " ".join(f"--exclude {shlex.quote(layer)}" for layer in layers)
    return Cause("head", layer_of(rows[0].name), message, f"{options} compares the rest")


def _is_carried(row: TensorDifference, widths: Set[tuple[int, int]]) -> bool:
    """Tell whether a weight has other input channels because a layer before it has other output channels."""
    n, n_theirs = (row.shape or ())[1], (row.b_shape or ())[1]
    return n != n_theirs and any(n * after == n_theirs * before for before, after in widths)


def _channels(
    reshaped: Sequence[TensorDifference], a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> Cause:
    """Return which layers have other numbers of channels, and whether one side has all values of the other."""
    texts = [_outputs(row, row) for row in reshaped if (row.shape or ())[0] != (row.b_shape or ())[0]]
    pairs = [(a[row.name], b[row.b_name or row.name]) for row in reshaped]
    is_part = [all(bool(torch.isin(one[n], one[1 - n]).all()) for one in pairs) for n in (0, 1)]
    small, large = "BA" if is_part[1] else "AB"
    subset = f"; the values of {small} are a subset of those of {large}" * any(is_part)
    return Cause("architecture", None, some(texts, 3) + subset, "give images to compare their outputs")


def _outputs(ours: TensorDifference, theirs: TensorDifference) -> str:
    (n, *rest), (n_theirs, *_) = ours.shape or (0,), theirs.b_shape or (0,)
    unit = "classes" if len(rest) == 1 else "output channels"
    return f"{layer_of(ours.name)} has {n} {unit} in A and {n_theirs} in B"


def _kinship(
    weights: Sequence[TensorDifference],
    alone: Sequence[Sequence[TensorDifference]],
    rows: Sequence[TensorDifference],
    places: Mapping[str, str],
    rounded: Mapping[str, str],
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    noun: str,
) -> str:
    """Return how many weights are of one start, unrelated, only in A or B, and equal; what changed comes first."""
    names, n = {row.name for row in weights}, len(weights) + max(map(len, alone), default=0)
    names |= {*places, *rounded}
    rest = [row for row in rows if row.status in ("changed", "retyped") and row.name not in names]
    groups: dict[str, list[TensorDifference]] = {x: [] for x in (*RELATIONS.values(), _CLOSE, _UNRELATED)}
    for row in weights:
        relation = rounded.get(row.name) or places.get(row.name) or _relation(row)
        if relation in (_CLOSE, _UNRELATED, _NOT_FINITE):
            found, n_changed = _partly(row, a[row.name], b[row.b_name or row.name])
            groups.setdefault(found or relation, []).append(replace(row, differing=n_changed))
        else:
            groups.setdefault(relation, []).append(row)
    equal = [
        _counted(groups.pop(kind), n, kind, noun) for kind in ("equal", _WITHIN, _FOLDED) if kind in groups
    ]
    texts = [_counted(group, n, relation, noun) for relation, group in groups.items() if group]
    for side, only in zip("AB", alone, strict=False):
        texts += [f"{len(only)} only in {side}: {some(row.name for row in only)}"] * bool(only)
    if not (groups[_CLOSE] or groups[_UNRELATED]):
        for relation in dict.fromkeys(one for one in rounded.values() if one not in groups):
            named = [name for name, one in rounded.items() if one == relation]
            also = f"{'is' if len(named) == 1 else 'are'} {relation}: {some(named, 2)}"
            texts.append(f"{counted(len(named), 'other tensor' if texts else 'tensor')} {also}")
        one = rest[0] if len(rest) == 1 and rest[0].max_abs is not None else None
        if one and not one.differing:
            texts.append(f"{one.name} is {one.dtype} in A and {one.b_dtype} in B")
        elif one:
            texts.append(
                f"{one.name} changed in {one.differing} of {one.numel} values, by up to {one.max_abs:.3g}"
            )
        elif rest:
            texts.append(
                f"{counted(len(rest), 'other tensor' if texts else 'tensor')} changed: {_span(rest)}"
            )
    return "; ".join((*texts, *equal))


def _partly(row: TensorDifference, a: Tensor, b: Tensor) -> tuple[str | None, int]:
    """Return what became of some values of A, and of how many; None where most are others. A part of one channel
    names that."""
    a, b = plain_values(plain_values(a).cpu().to(b.dtype)), plain_values(b).cpu()
    n_changed = int((differ := a != b).sum())
    if not n_changed:  # in this dtype
        return None, 0
    channels = differ.flatten(1).any(1).nonzero().flatten().tolist()
    where = f", all in output channel {channels[0]}" * (len(channels) == 1)
    if not b[differ].count_nonzero():
        if len(channels) < len(b) and not b[channels].count_nonzero():
            named = f"output channel{'s' * (len(channels) > 1)} {some(map(str, channels), 8)}"
            return f"{_ZEROED}, all of {named}", n_changed
        return _ZEROED + ", as of pruning" * (not (a[b != 0].abs() < a[differ].abs().amax()).any()), n_changed
    if 2 * (row.differing or 0) > (row.numel or 0):
        return None, n_changed
    return _PARTLY + where, n_changed


def roundings_of(
    rows: Iterable[TensorDifference], a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> dict[str, str]:
    """Return to what changed tensors are rounded, and in which side, by name; to the same where they can be.

    Those with a norm folded in are judged by distance.
    """
    found: dict[str, list[str]] = {}
    changed = [
        row for row in rows if row.status in ("changed", "retyped") and not (row.nonfinite or row.problem)
    ]
    for row in changed:
        ours, theirs = a[row.name], b[row.b_name or row.name]
        if not row.matched:
            kinds = [f"{kind} in A" for kind in _roundings(theirs, ours, not row.differing)]
            found[row.name] = kinds + [f"{kind} in B" for kind in _roundings(ours, theirs, not row.differing)]
        elif (row.rel_l2 or 0.0) < _ROUNDED and (kind := coarse(theirs)):
            found[row.name] = [f"{kind} in B"]
    differing = [row.name for row in changed if row.differing]
    if differing and not any(found.get(name) for name in differing):
        return {}  # others are equal in both dtypes, such as zeros
    counts = Counter(kind for kinds in found.values() for kind in kinds)
    usual = {name: max(kinds, key=counts.__getitem__) for name, kinds in found.items() if kinds}
    return {name: f"{_THE_SAME_ROUNDED} {kind}" for name, kind in usual.items()}


def _roundings(a: Tensor, b: Tensor, is_equal: bool) -> list[str]:
    """Return to which dtypes `a` is rounded in `b`: each value is one of the dtype, and none is nearer to `a`'s."""
    a, b = (plain_values(one).cpu() for one in (a, b))
    if not (a.is_floating_point() and b.is_floating_point()):
        return []
    if is_equal:
        return [dtype_name(b.dtype)] * (b.dtype != a.dtype and b.itemsize <= a.itemsize)
    found = [name for name, dtype in zip(_NAMES, _FLOATS, strict=True) if _is_nearest(a, b, dtype)]
    if found and torch.equal(*b.float().aminmax()):
        return []  # ones, with which norms begin, are near to many values
    return found or _grids(a, b)


def _grids(a: Tensor, b: Tensor) -> list[str]:
    """Return in which parts `b` is `a` rounded to few equidistant values: the tensor, or each row or group."""
    sizes = {"tensor": b.numel(), "row": b[:1].numel()} | {f"group of {n}": n for n in (128, 64, 32)}
    for part, size in sizes.items() if a.dtype == b.dtype == torch.float32 else ():
        if size < _FEWEST or b.numel() % size:
            continue
        rows = a.reshape(-1, size), b.reshape(-1, size)
        if not _levels(*(one[:1, :_N_AT_A_GLANCE] for one in rows)):
            continue
        chunks = zip(*(one.split(max(1, _N_AT_ONCE // size)) for one in rows), strict=True)
        levels = [_levels(x, y) for x, y in chunks]
        if all(levels) and max(levels) > 1:
            n = next(n for n in (4, 16, 256) if n >= max(levels))
            return [f"at most {n} equidistant values per {part}"]
    return []


def _levels(a: Tensor, b: Tensor) -> int:
    """Return to how many equidistant values each row of `a` is rounded or clipped in `b`, at most 256; else 0."""
    a, b = a.double(), b.double()
    values = b.sort(1).values
    low, high = values[:, :1], values[:, -1:]
    span, gaps = high - low, values.diff(dim=1)
    step = gaps.masked_fill(gaps == 0, math.inf).amin(1, keepdim=True)
    levels = (a == b).all(1, keepdim=True) & (span == 0)  # the number of each row, 0 where there is none
    for part in range(1, 9):  # the smallest gap may be that of several steps
        n = (part * span / step).round()
        codes = (b - low) / span * n
        is_grid = (n < 256) & ((codes - codes.round()).abs().amax(1, keepdim=True) < 0.01)
        is_nearest = (a.clamp(low, high) - b).abs().amax(1, keepdim=True) <= 0.51 * span / n
        levels = torch.where((levels == 0) & is_grid & is_nearest, n + 1, levels)
        if levels.all():
            break
    return int(levels.amax()) if levels.all() else 0


def _is_nearest(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    for part in (slice(_N_AT_A_GLANCE), slice(None)):
        x, y = a.reshape(-1)[part], b.reshape(-1)[part].double()
        gap = (x.to(dtype).double() - x.double()).abs()
        if not bool(((y.to(dtype).double() == y) & ((y - x.double()).abs() <= gap)).all()):
            return False
    return True


def _relation(row: TensorDifference) -> str:
    cosine = row.cosine or 0.0
    chance = 3 * math.prod(row.shape or ()) ** -0.5  # three standard deviations
    if row.status not in ("changed", "retyped"):
        return _FOLDED if row.matched else _WITHIN if row.differing else "equal"
    if row.nonfinite or row.problem:
        return f"not compared: {row.problem}" if row.problem else _NOT_FINITE
    return _CLOSE if cosine > max(_RELATED, chance) else _UNRELATED


def _counted(group: Sequence[TensorDifference], n: int, relation: str, noun: str) -> str:
    cosines = [row.cosine or 0.0 for row in group]
    which = f"{len(group)} of {counted(n, noun)}"
    if len(group) == n:
        which = f"{'both' if n == 2 else f'all {n}'} {noun}s" if n > 1 else f"the {noun}"
    is_exception = 2 * len(group) < n and relation.startswith(_THE_SAME_ROUNDED)
    is_named = len(group) < n and (is_exception or relation.startswith(_NAMED))
    share = sum(row.differing or 0 for row in group) / max(sum(row.numel or 0 for row in group), 1)
    bounds = {"low": math.floor(min(cosines) * 1e4) / 1e4, "high": math.ceil(max(cosines) * 1e4) / 1e4}
    text = relation.format(**bounds, share=f"{100 * share:.2g} %")
    return f"{which} {'is' if len(group) == 1 else 'are'} {text}" + f": {_span(group)}" * is_named


def _span(rows: Sequence[TensorDifference]) -> str:
    """Return the first and the last layer of some tensors, or their names where these have no layer."""
    return " to ".join(dict.fromkeys(layer_of(row.name) or row.name for row in (rows[0], rows[-1])))
