"""What the dtype with the smaller range does to a model: values that do not fit in it, or that round to zero."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.comparison.activations import Side
from modelscope_cli.analysis.comparison.distance import sum_up, to_distance
from modelscope_cli.analysis.comparison.evidence import gathered
from modelscope_cli.analysis.comparison.matching import Matching
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.hooks.torch_private import operators_shown_to
from modelscope_cli.records.diff import Cause, LayerDifference
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.run import Arguments


class _Extremes(Observer):
    """Keeps the largest finite value that operators return between two calls, and how many are infinite."""

    def __init__(self, start: LayerDifference | None, end: LayerDifference) -> None:
        self._start, self._end = start and (start.name, start.call), (end.name, end.call)
        self._is_on, self.largest, self.infinite = start is None, 0.0, 0
        self.mode = operators_shown_to(self._see)

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        key = call.name, call.index
        self._is_on = key != self._end and (self._is_on or key == self._start)

    def _see(self, operator: Any, given: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        if self._is_on and "empty" not in str(operator):  # which returns what the memory holds
            for one in (one.detach().abs() for _, one in tensors_in(result) if one.is_floating_point()):
                self.infinite += int(one.isinf().sum())
                largest = one.nan_to_num(0.0, 0.0).max().item() if one.numel() else 0.0
                self.largest = max(self.largest, largest)


def precision_causes(
    a: Side, b: Side, rows: Sequence[LayerDifference], args: Arguments, tolerance: float
) -> Iterator[Cause]:
    """Yield what the narrower dtype does at the first layer that diverges, or just before it, as checks show."""
    n = next((n for n, row in enumerate(rows) if row.status == "changed"), None)
    if n is None:
        return
    wide, narrow = sorted((a, b), key=lambda side: -torch.finfo(side.loaded.dtype).max)
    least = max(tolerance, torch.finfo(narrow.loaded.dtype).eps)  # not its rounding alone
    first, dtype, where = rows[n], narrow.loaded.dtype, rows[n].label if rows[n].name else "the output"
    start = next((row for row in reversed(rows[:n]) if row.status == "same" and row.name), None)
    extremes, b_extremes = seen = _Extremes(start, first), _Extremes(start, first)
    evidence = gathered(wide, narrow, first, rows, frozenset(), Matching({}), args, seen)
    for name, module in evidence.modules:
        for own, tensor in (*module.named_parameters(), *module.named_buffers()):
            if misfit := _misfit(f"{name}.{own}", tensor, dtype, least):
                yield Cause("range", name, misfit, f"keep {name} in {dtype_name(wide.loaded.dtype)}")
                return
    ours, place = evidence.a_in, f"in {where}"
    if evidence.name and ours is not None:
        pairs = [sum_up(ours, one) for one in evidence.b_in if one.shape == ours.shape]
        if pairs and all(to_distance(sums).exceeds(least) for sums in pairs):
            place = f"between {start.label if start else 'the input'} and {where}"
            message = f"the input of {where} already differs, so the difference arises {place}"
            yield Cause("outside_layers", first.name, message, "look at what forward computes there")
    most, largest = torch.finfo(dtype).max, extremes.largest
    if largest > most and b_extremes.infinite > extremes.infinite:
        above = f"above {dtype_name(dtype)}'s largest, {most:,.6g}"
        text = f"{place}, {wide.label} reaches {largest:.2g}, {above}"
        text += " (bfloat16 holds it)" * (most < largest < torch.finfo(torch.bfloat16).max)
        yield Cause("range", first.name or None, text, "")
    elif evidence.a_out is not None and (
        misfit := _misfit(f"the output of {where}", evidence.a_out, dtype, least)
    ):
        yield Cause("range", first.name or None, misfit, "")


def _misfit(name: str, tensor: Tensor, dtype: torch.dtype, least: float) -> str | None:
    """Return how values do not fit in a dtype: too large, or so small that more than its rounding is lost."""
    if not tensor.is_floating_point() or not tensor.isfinite().all():
        return None
    limits, kind, rounded = torch.finfo(dtype), dtype_name(dtype), tensor.detach().to(dtype)
    lost = to_distance(sum_up(tensor, rounded))
    if lost.nonfinite:
        is_held = kind == "float16" and bool(tensor.to(torch.bfloat16).isfinite().all())
        message = (
            f"{name} does not fit in {kind}: it reaches {tensor.abs().max():.2g}, above {limits.max:,.6g}"
        )
        return message + " (bfloat16 holds it)" * is_held
    if lost.rel_l2 <= least:
        return None
    zeros = int(((rounded == 0) & (tensor != 0)).sum())
    message = f"{name} is too small for {kind}, whose smallest normal number is {limits.tiny:.2g}"
    return f"{message}: {zeros:,} of {tensor.numel():,} values round to zero"
