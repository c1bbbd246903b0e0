"""Values of A that B has in another tensor, in another order within their own, or times a factor.

Only what the values prove, within the coarser dtype. Hints are Python for the state dicts `a` and `b`.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import sha256

import torch
from torch import Tensor

from modelscope_cli.analysis.comparison.distance import plain_values
from modelscope_cli.records.diff import Cause, TensorDifference
from modelscope_cli.records.naming import layer_of, some

RELATIONS = {
    "exchanged": "equal to other tensors of A",
    "reordered": "as in A, but in a different order",
    "scaled": "the same as in A up to a factor",
}
"""How a tensor is related to those of A, in words, by the kind of the cause."""
_REMAINDER = 5e-5  # of a multiple that is rounded to float32, relative to its norm, at most
_FEWEST = 4  # values, of which fewer agree by chance, as counters of batches do
_MOST = 16  # indices, or tensors, that a hint lists
_RESTORES = "   # restores A's values in Python (state dicts a, b)"
CODES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2)
FAR = 0.5  # relative L2, beyond which codes are not values of the other side
Tensors = Mapping[str, Tensor]


def find_moved(
    rows: Sequence[TensorDifference], a: Tensors, b: Tensors
) -> tuple[list[Cause], dict[str, str]]:
    """Return what was exchanged, reordered or scaled, and how each such tensor is related, by its name."""
    compared = (row for row in rows if row.status in ("changed", "retyped", "reshaped"))
    names = {row.name: row.b_name or row.name for row in compared if not (row.matched or row.problem)}
    sources: dict[str, str] = {}
    for dtype in {b[b_name].dtype for b_name in names.values()}:
        ours, theirs = by_value(a, dtype), by_value({x: b[y] for x, y in names.items()})
        for name, alike in ((x, ours.get(value, [])) for value, group in theirs.items() for x in group):
            if alike and name not in alike and _varies(b[names[name]]):
                own = [one for one in alike if one.rpartition(".")[2] == name.rpartition(".")[2]]
                sources[name] = (own or alike)[0]
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name in (name for name in names if name not in sources):
        if how := _reordered(*_plain(a[name], b[names[name]])):
            found[how].append(name)
    causes = [_exchanged(sources, names, a)] if sources else []
    for (kind, what, undo), group in found.items():
        line = f"b |= {{k: {undo} for k in {[names[x] for x in group]} for v in [b[k]]}}{_RESTORES}"
        message = f"{some(group, 2)}: B has the values of A {what}"
        causes.append(Cause(kind, layer_of(group[0]), message, line * bool(undo)))
    related = {name: RELATIONS[kind] for (kind, *_), group in found.items() for name in group}
    return causes, related | dict.fromkeys(sources, RELATIONS["exchanged"])


def by_value(tensors: Tensors, dtype: torch.dtype | None = None) -> dict[object, list[str]]:
    """Return the names of the tensors of each shape, dtype and value, which are first rounded to a dtype."""
    names: dict[object, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.layout == torch.strided and not tensor.is_quantized:
            flat = tensor.detach().to("cpu", dtype or tensor.dtype).contiguous().reshape(-1)
            names[tensor.shape, flat.dtype, sha256(flat.view(torch.uint8).numpy().data).digest()].append(name)
    return names


def _plain(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return both rounded to the coarser dtype of the two, on the CPU, in one that NumPy has."""
    dtype = b.dtype if b.dtype.itemsize <= a.dtype.itemsize else a.dtype
    x, y = (plain_values(one).cpu().to(dtype) for one in (a, b))
    return (x.float(), y.float()) if dtype.is_floating_point and dtype.itemsize < 4 else (x, y)


def _varies(tensor: Tensor) -> bool:
    """Tell whether values say where they come from: constants, with which norms and biases begin, do not."""
    values = plain_values(tensor).reshape(-1).float()
    return values.numel() >= _FEWEST and bool((values != values[0]).any())


def _exchanged(sources: Mapping[str, str], names: Mapping[str, str], a: Tensors) -> Cause:
    """Say which layers have the values of others; of which not all did, which tensors."""
    units: dict[str, str] = {}
    for name, source in sources.items():
        (layer, _, own), (other, _, its) = name.rpartition("."), source.rpartition(".")
        every = [x for x in a if layer_of(x) == layer and _varies(a[x])]
        is_whole = own == its and all(layer_of(sources.get(x, "")) == other for x in every)
        units |= {layer: other} if is_whole else {name: source}
    places = {unit: n for n, unit in enumerate(units)}
    texts = [
        f"the values of {x} and {y} are exchanged" if units.get(y) == x else f"{x} of B has the values of {y}"
        for x, y in units.items()
        if units.get(y) != x or places[x] < places[y]
    ]
    moves = {names[x]: names.get(y, "") for x, y in sources.items()}
    is_undone = {*sources} == {*sources.values()} and len(moves) <= 4 * _MOST
    line = f"b |= {{y: b[x] for x, y in {moves}.items()}}{_RESTORES}"
    return Cause("exchanged", layer_of(next(iter(sources))), some(texts), line * is_undone)


def _reordered(a: Tensor, b: Tensor) -> tuple[str, str, str] | None:
    """Return the kind of cause, how `b` is `a` in another order or scaled, and what undoes it, as Python of `v`."""
    if a.numel() != b.numel() or not (_varies(a) and _varies(b)) or torch.equal(a, b):
        return None
    if a.aminmax() != b.aminmax():
        return _scaled(a, b) if a.shape == b.shape and a.is_floating_point() else None
    every = [*itertools.permutations(range(a.ndim))]
    for axes in sorted(every, key=lambda axes: a.permute(axes).shape != b.shape):
        turned = a.permute(axes)
        if torch.equal(turned.reshape(b.shape), b):
            undo = f"v.reshape({tuple(turned.shape)}).permute{tuple(map(axes.index, every[0]))}"
            what = "transposed" if a.ndim == 2 else f"with the axes in the order {', '.join(map(str, axes))}"
            shape = f"in the shape {'x'.join(map(str, b.shape))}"
            return "reordered", what if axes != every[0] else shape, undo
    for axis in range(a.ndim) if a.shape == b.shape else ():
        x, y = (one.movedim(axis, 0).reshape(one.shape[axis], -1) for one in (a, b))
        places: dict[bytes, list[int]] = defaultdict(list)
        for n, row in enumerate(x.numpy()):
            places[row.tobytes()].append(n)
        order = [found.pop(0) if (found := places[row.tobytes()]) else -1 for row in y.numpy()]
        if 2 * len(places) > len(x) and -1 not in order:  # signs or levels are the same by chance
            part = "rows" if axis == 0 else "columns" if a.ndim == 2 else f"parts along axis {axis}"
            what, at = f"with the {part} in a different order", ":, " * axis
            colours = ", as of RGB and BGR" * (order == [2, 1, 0] and axis == 1)
            back, is_short = sorted(range(len(x)), key=order.__getitem__), len(order) <= _MOST
            return "reordered", what + f", {order}{colours}" * is_short, f"v[{at}{back}]" * is_short
    return None


def _scaled(a: Tensor, b: Tensor) -> tuple[str, str, str] | None:
    """Return whether `b` is `a` times a factor, or one for each row; by factors of nearly 1 it is a small step."""
    if (factors := _factors(a, b)) is None or not factors.all():  # zeros are not a factor
        return None
    low, high = factors.min().item(), factors.max().item()
    if len(factors) == 1:
        return ("scaled", f"times {low:.4g}", f"v / {low:.7g}") if f"{low:.4g}" != "1" else None
    each = f"times a factor for each row, {low:.3g} to {high:.3g}"
    return ("scaled", each, "") if (f"{low:.3g}", f"{high:.3g}") != ("1", "1") else None


def _factors(a: Tensor, b: Tensor) -> Tensor | None:
    """Return the factor by which `b` is `a`, or that of each row, within the rounding of float32; else None."""
    is_told_by_row = a.ndim > 1 and len(a) > 1 and a[0].numel() >= _FEWEST and _varies(a[0])
    if is_told_by_row and _factors(a[0], b[0]) is None:
        return None  # at a glance
    for parts in (1, len(a)) if a.ndim > 1 else (1,):
        x, y = (one.reshape(parts, -1).double() for one in (a, b))
        factors = (x * y).sum(1, keepdim=True) / x.square().sum(1, keepdim=True).clamp_min(1e-300)
        if x.shape[1] >= _FEWEST and (y - factors * x).norm() <= _REMAINDER * y.norm():
            return factors
    return None
