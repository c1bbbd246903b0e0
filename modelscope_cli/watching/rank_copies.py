"""Copies of one parameter on several ranks, and why they are no longer the same. Standard library only."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from modelscope_cli.records.naming import counted, some

if TYPE_CHECKING:
    from modelscope_cli.watching.read_series import RankLog

Key = tuple[str, str]  # model, name of the parameter
TWICE = 2  # steps after which ranks that were given other data agree: that is not chance
_SAME = 1e-5  # relative, of norms in float32; an all-reduce gives every rank the very same sum


@dataclass(frozen=True, slots=True)
class Replicas:
    """A parameter of which several ranks hold a copy each, `members` by their numbers."""

    key: Key
    members: "Mapping[int, RankLog]"

    @property
    def optimizer(self) -> str:
        return next(rank.trained[self.key][0] for rank in self.members.values())

    @property
    def origins(self) -> list[Mapping[str, Any]]:
        return [rank.origins.get(self.key, {}) for rank in self.members.values()]

    def common(self) -> list[int]:
        """Return the steps at which every rank took a checksum."""
        return sorted(set.intersection(*(set(rank.weights[self.key]) for rank in self.members.values())))

    def checksums(self, step: int) -> list[int]:
        return [rank.weights[self.key][step][0] for rank in self.members.values()]

    def distance(self, step: int) -> float:
        """Return by about which share of their size the weights differ."""
        found = [rank.weights[self.key][step] for rank in self.members.values()]
        sums, norm = [signed for _, signed, _ in found], max(norm for *_, norm in found)
        return (max(sums) - min(sums)) / norm if norm else 0.0

    def row(self, step: int, column: int) -> list[float | None]:
        found = [rank.parameters.get(self.key, {}).get(step) for rank in self.members.values()]
        return [None if row is None else row[column] for row in found]

    def losses(self, step: int) -> list[float | None]:
        noted = [rank.steps.get((self.optimizer, step)) for rank in self.members.values()]
        return [None if one is None else one.loss for one in noted]

    def is_meant(self) -> bool:
        """Tell whether the copies are meant to be the same: DistributedDataParallel says so, or what is seen.

        Ranks whose losses differ were given other data. Where their gradients, or the weights behind the step, are
        the same all the same, they were averaged.
        """
        if all(self.origins):
            return True
        found, steps = 0, self.common()
        for step in steps:
            norms = self.row(step, 0)
            found += differ(self.losses(step)) and any(norms) and are_same(norms)
        for before, step in pairwise(steps):
            is_changed = self.checksums(before) != self.checksums(step)
            found += is_changed and differ(self.losses(step - 1)) and len(set(self.checksums(step))) == 1
        return found >= TWICE


@dataclass(frozen=True, slots=True)
class Breach:
    """Where copies are the same no longer.

    Attributes:
        step: finds them different; `after`: the last that found them the same, None for none.
        values: of each rank, that differ.
        is_exact: the step before it is the one that left them different.
        is_between: that step left them the same: they were written to behind it.
        distance: at first; None where it is not known.
    """

    copies: Replicas
    step: int
    after: int | None
    values: tuple[int, ...]
    is_exact: bool = False
    is_between: bool = False
    distance: float | None = None

    @property
    def culprit(self) -> int:
        return max(self.step - 1, 0)


def cause_of(breach: Breach, meant: Sequence[Replicas]) -> tuple[str, str, str | None]:
    """Return why the copies differ, what to do about it, and the line it is about."""
    copies, step = breach.copies, breach.culprit
    members, origins = copies.members, copies.origins
    made = next((origin.get("made") for origin in origins if origin), None)
    is_parallel = all(origin and not origin.get("by_hand") for origin in origins)
    if breach.step == 0:
        words = "they differ before the first step"
        if is_parallel:
            return f"{words}, so they were changed behind DistributedDataParallel", _MAKE_LAST, made
        return f"{words}, and only the gradients are averaged", _BROADCAST, made
    if breach.is_between:
        return f"they are written to between steps {step} and {step + 1}, by no optimizer", _WRITE_ALIKE, None
    if is_parallel:
        passes = {number: _passes(rank, copies.optimizer, step) for number, rank in members.items()}
        if left := [n for n, (averaged, alone, _) in passes.items() if alone and not averaged]:
            return f"every backward pass of {ranks_named(left)} runs inside no_sync()", _NO_SYNC, made
        if past := [n for n, (averaged, alone, _) in passes.items() if not alone and not averaged]:
            called = any_rank(copies).facts.models.get(copies.key[0])
            where = called.called if called is not None else None
            what = f"the forward pass of {ranks_named(past)} goes past DistributedDataParallel"
            return what + (f", made at {made}" if made else ""), _CALL_IT, where
        own = [one for one in meant if one.key[0] == copies.key[0]]
        left_out = [one.key[1] for one in own if not all(origin.get("averaged") for origin in one.origins)]
        if left_out:
            were = "was" if len(left_out) == 1 else "were"
            words = f"{some(left_out)} {were} frozen, or not there, when DistributedDataParallel was made"
            return f"{words}, which leaves {'it' if len(left_out) == 1 else 'them'} out", _MAKE_LAST, made
        if any(lost for _, _, lost in passes.values()):
            words = "the model was moved or cast behind DistributedDataParallel, whose hooks are lost by that"
            return words, _MAKE_LAST, made
    ends = {number: rank.end or {} for number, rank in members.items()}
    if len({end.get("steps") for end in ends.values()}) > len({end.get("backward") for end in ends.values()}):
        counts = [
            f"rank {n} {counted(int(end['steps']), 'step')}" for n, end in ends.items() if end.get("steps")
        ]
        words = f"after as many backward passes, {' and '.join(counts)} were taken: some are skipped"
        return words, _SKIP_ALIKE, None
    rates = {n: _rates(rank, copies.optimizer, step) for n, rank in members.items()}
    if len(set(rates.values())) > 1:
        words = " and ".join(f"{rate[0]:g} on rank {n}" for n, rate in rates.items() if rate)
        return f"the learning rate is {words}", "use the same schedule and options on every rank", None
    return (*_gradient_cause(breach, meant), None if is_parallel else made)


def _gradient_cause(breach: Breach, meant: Sequence[Replicas]) -> tuple[str, str]:
    """Return what the norms of gradients and steps tell of the step that left the copies different."""
    numbers = list(breach.copies.members)
    same = [one for one in meant if list(one.members) == numbers]
    # Gradients that are averaged are the same, be the weights or not: a later step tells as well.
    step = next((step for step in breach.copies.common() if step >= breach.culprit), breach.culprit)
    is_recorded = breach.is_exact and step == breach.culprit
    gradients = [(one, norms) for one in same if any(norms := one.row(step, 0))]
    if not gradients:
        return _UNKNOWN
    for one, norms in gradients:
        if None in norms:
            without = [n for n, norm in zip(numbers, norms, strict=True) if norm is None]
            return f"{one.key[1]} has no gradient on {ranks_named(without)}", _USE_ALIKE
    other = [(one, norms) for one, norms in gradients if not are_same(norms)]
    if not other:
        if is_recorded and any(not are_same(one.row(step, 2)) for one in same):
            return "the gradients agree and the steps differ: options or state of the optimizer", _STEP_ALIKE
        return _UNKNOWN
    shown = other[0][1]
    ratios = [[(norm or 0.0) / norms[0] for norm in norms] for _, norms in other if norms[0]]
    if len(ratios) == len(gradients) > 1 and all(are_same(column) for column in zip(*ratios, strict=True)):
        n, ratio = max(zip(numbers, ratios[0], strict=True), key=lambda pair: abs(math.log(pair[1] or 1e-30)))
        words = f"every gradient of rank {n} is {ratio:.3g} times that of rank {numbers[0]}"
        return f"{words}, clipped or scaled on one of them only", _CLIP_ALIKE
    each = " and ".join(f"{norm:.3g} on rank {n}" for n, norm in zip(numbers, shown, strict=True))
    if len(other) < len(gradients):
        words = f"its gradient is not averaged, as that of {counted(len(gradients) - len(other), 'other')} is"
        return f"{words}: its norm is {each}", "average the gradient of every parameter"
    words = f"that of {other[0][0].key[1]} is {each}"
    if all(origin and not origin.get("by_hand") for origin in breach.copies.origins):
        return f"the gradients are changed on one rank only once they are averaged: {words}", _CLIP_ALIKE
    return f"the gradients that the steps are made of differ: {words}", _AVERAGE


_MAKE_LAST = (
    "make DistributedDataParallel once the model is complete, on its device, with its weights loaded and "
    "requires_grad set"
)
_BROADCAST = "broadcast the weights of rank 0 before the first step, or set the same seed on every rank"
_WRITE_ALIKE = "change weights outside of optimizer.step() on every rank alike, or broadcast them afterwards"
_NO_SYNC = "leave no_sync() for the last backward pass before each step"
_CALL_IT = "call the DistributedDataParallel object itself, not its .module or the model that was given to it"
_SKIP_ALIKE = "skip a step on every rank or on none: let all of them know by an all_reduce of the flag"
_USE_ALIKE = "use the same layers on every rank in each step, or find_unused_parameters=True"
_CLIP_ALIKE = "clip and scale gradients on every rank alike, behind the backward pass"
_AVERAGE = "average the gradients in every step, and treat them alike on every rank afterwards"
_UNKNOWN = "the cause is not known, as the step was not recorded", "watch with --every 1 to see each step"
_STEP_ALIKE = "make the same optimizer with the same options on every rank, and treat the gradients alike"


def _passes(rank: "RankLog", optimizer: str, step: int) -> tuple[int, int, bool]:
    """Return the passes through DistributedDataParallel that led to a step; they are counted from the start."""
    averaged, alone, is_lost = rank.passes.get((optimizer, step), (1, 0, False))
    before = rank.passes.get((optimizer, step - 1), (0, 0, False))
    later = any(
        lost for (label, at), (_, _, lost) in rank.passes.items() if label == optimizer and at >= step
    )
    return averaged - before[0], alone - before[1], is_lost or later


def _rates(rank: "RankLog", optimizer: str, step: int) -> tuple[float | None, ...]:
    noted = rank.steps.get((optimizer, step))
    return tuple(noted.lr) if noted is not None else ()


def any_rank(copies: Replicas) -> "RankLog":
    return next(iter(copies.members.values()))


def ranks_named(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def differ(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value is not None]
    return len(known) == len(values) and not are_same(known)


def are_same(values: Sequence[float | None]) -> bool:
    """Compare norms, NaN and infinite ones too."""
    first, *others = values
    return all(_is_same(first, other) for other in others)


def _is_same(a: float | None, b: float | None) -> bool:
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return a == b or str(a) == str(b)
    return math.isclose(a, b, rel_tol=_SAME, abs_tol=1e-12)
