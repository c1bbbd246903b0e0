"""What only a second pass over the images can tell, now that the first has told the means and the buckets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from modelscope_cli.analysis.activations.activation import Activation, Key
from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.quantiles import SHORT, buckets_of, quantiles_of
from modelscope_cli.analysis.statistics.reduce import abs_deviation, trailing_counts
from modelscope_cli.analysis.statistics.tally import Tally
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, Observer


@dataclass(frozen=True, slots=True)
class Again:
    """What the second pass adds to one output; parts merge by addition, in the order of the batches.

    Attributes:
        abs_deviation: sum of |x - mean|; 0 where it is not needed.
        trailing: by bucket, the trailing digits of the values in it.
    """

    abs_deviation: float
    trailing: dict[int, Tally]

    def merge(self, later: "Again") -> "Again":
        """Return what both add."""
        return Again(
            self.abs_deviation + later.abs_deviation,
            {bucket: tally.merge(later.trailing[bucket]) for bucket, tally in self.trailing.items()},
        )


def merge_all(before: Sequence[Again], later: Sequence[Again]) -> tuple[Again, ...]:
    """Merge what two batches add, output by output."""
    return tuple(one.merge(other) for one, other in zip(before, later, strict=True))


@dataclass(frozen=True, slots=True)
class _Missing:
    """What is to be gathered of one output: |x - `centre`| where it is not None, and digits in the `buckets`."""

    centre: float | None
    buckets: tuple[int, ...]

    def __bool__(self) -> bool:
        return self.centre is not None or bool(self.buckets)


class SecondPass(Observer):
    """Gathers what the first pass left open.

    Args:
        first: what it found, merged over all batches.
    """

    def __init__(self, first: Mapping[Key, Activation], wanted: Wanted) -> None:
        self._wanted = wanted
        self._missing = {key: _missing(activation, wanted) for key, activation in first.items()}
        self._begin()

    @property
    def is_needed(self) -> bool:
        return any(self._missing.values())

    def _begin(self) -> None:
        self._sums: dict[Key, float | Tensor] = {}
        self._digits: dict[Key, dict[int, Tensor]] = {}

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        for path, tensor in tensors_in(output):
            key = (call.name, call.index, path)
            missing = self._missing.get(key)
            if not missing:
                continue
            if missing.centre is not None:
                self._sums[key] = self._sums.get(key, 0.0) + abs_deviation(tensor, missing.centre)
            digits = self._digits.setdefault(key, {})
            for bucket, counts in trailing_counts(tensor, missing.buckets).items():
                digits[bucket] = digits[bucket] + counts if bucket in digits else counts

    def take(self) -> tuple[Again, ...]:
        """Return what a batch adds, in the order of the activations, and begin anew."""
        taken = tuple(self._taken(key, missing) for key, missing in self._missing.items())
        self._begin()
        return taken

    def _taken(self, key: Key, missing: _Missing) -> Again:
        digits = self._digits.get(key, {})
        tallies = {bucket: Tally.of(digits[bucket]) if digits else Tally.none() for bucket in missing.buckets}
        return Again(float(self._sums.get(key, 0.0)), tallies)


def complete(activation: Activation, again: Again, wanted: Wanted) -> None:
    """Add to an activation what the second pass has found."""
    moments = activation.moments
    if moments is None:
        return
    if _wants_deviation(moments, wanted):
        activation.moments = replace(moments, abs_deviation=again.abs_deviation)
    if moments.leading and moments.n:
        activation.quantiles = quantiles_of(wanted.quantiles, moments.leading, again.trailing)


def _missing(activation: Activation, wanted: Wanted) -> _Missing:
    moments = activation.moments
    if moments is None or activation.problem:
        return _Missing(None, ())
    is_short = activation.dtype in SHORT or moments.leading is None
    buckets = () if is_short or moments.leading is None else buckets_of(wanted.quantiles, moments.leading)
    return _Missing(moments.mean if _wants_deviation(moments, wanted) else None, buckets)


def _wants_deviation(moments: Moments, wanted: Wanted) -> bool:
    return wanted.mad and moments.abs_deviation is None
