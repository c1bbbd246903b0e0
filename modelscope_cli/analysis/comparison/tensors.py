"""`diff` without an input: two state dicts, tensor by tensor."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from torch import Tensor

from modelscope_cli.analysis.comparison.distance import sum_up, to_distance, traits
from modelscope_cli.analysis.comparison.renames import pair_names
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.diff import Renaming, TensorDifference


def diff_tensors(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    tolerance: float = 0.0,
    *,
    track: Callable[[Iterable[str], int], Iterator[str]] = lambda names, total: iter(names),
) -> tuple[tuple[TensorDifference, ...], tuple[Renaming, ...]]:
    """Compare two state dicts, one tensor at a time; of mapped files nothing is kept in memory.

    Args:
        tolerance: on the relative L2; 0 finds every bit.
        track: wraps the iteration to show its progress.

    Returns:
        the rows, what A has in its order, then what only B has; and the prefixes that make names fit.
    """
    pairs, renamings = pair_names(a, b)
    taken = set(pairs.values())
    rows = [
        _compare(name, a[name], pairs[name], b[pairs[name]], tolerance)
        if name in pairs
        else TensorDifference(name=name, status="removed", **traits(a[name], None))
        for name in track(a, len(a))
    ]
    added = (
        TensorDifference(name=name, status="added", **traits(None, tensor))
        for name, tensor in b.items()
        if name not in taken
    )
    return (*rows, *added), renamings


def _compare(name: str, a: Tensor, b_name: str, b: Tensor, tolerance: float) -> TensorDifference:
    row = TensorDifference(
        name=name, status="reshaped", b_name=b_name if b_name != name else None, **traits(a, b)
    )
    if a.shape != b.shape:
        return row
    try:
        distance = to_distance(sum_up(a, b))
    except (TypeError, RuntimeError, NotImplementedError) as error:
        # One tensor that cannot be compared is a row that says so, never the end of the run.
        return dataclasses.replace(row, status="changed", problem=in_one_line(error, 200))
    if a.dtype != b.dtype:
        status = "retyped"
    elif distance.exceeds(tolerance):
        status = "changed"
    else:
        status = "same" if b_name == name else "renamed"
    return dataclasses.replace(row, status=status, **dataclasses.asdict(distance))
