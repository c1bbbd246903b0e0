"""Ranks that should hold the same weights, and do not. Standard library only."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from modelscope_cli.records.naming import counted
from modelscope_cli.records.ranks import Disagreement, RankFacts
from modelscope_cli.records.watch import SAME_DATA, Event
from modelscope_cli.watching.rank_copies import (
    TWICE,
    Breach,
    Key,
    Replicas,
    any_rank,
    are_same,
    cause_of,
    differ,
    ranks_named,
)

if TYPE_CHECKING:
    from modelscope_cli.watching.read_series import RankLog

_ENOUGH = 3  # recorded steps
_ROUNDING = 1e-6  # relative, of weights: another order of the same sums


def find_other_ends(ranks: "Sequence[RankLog]") -> Iterator[Event]:
    """Name every rank that ended otherwise than the first, or took another number of steps than most."""
    if len(ranks) < 2:
        return
    usual = statistics.median_low(sorted(rank.n_steps for rank in ranks))
    for number, rank in enumerate(ranks):
        if rank.exit_code not in (0, ranks[0].exit_code):
            how = "without saying how" if rank.exit_code is None else f"with exit code {rank.exit_code}"
            yield Event(
                rank.n_steps, "rank", f"rank {number} ended {how}, after {counted(rank.n_steps, 'step')}"
            )
        if rank.n_steps != usual:
            yield Event(
                rank.n_steps,
                "rank",
                f"rank {number} took {counted(rank.n_steps, 'step')}, the others {usual}",
            )


def find_same_data(ranks: "Sequence[RankLog]") -> Iterator[Event]:
    """Tell of ranks that were all given the very same batches: by every figure of what entered, at every step."""
    if len(ranks) < 2:
        return
    seen = [{one.key: one.rows for one in rank.facts.inputs} for rank in ranks]
    for key, rows in seen[0].items():
        others = [held.get(key) for held in seen[1:]]
        varies = len({tuple(row) for row in rows.values()}) > 1
        is_alike = len(rows) >= _ENOUGH and varies and all(other == rows for other in others)
        if is_alike and _is_replicated(
            key[0], ranks
        ):  # ranks that share the work on a batch have to be given it
            what = f"{key[1]} of {key[0]} agrees in every figure"
            message = f"all {len(ranks)} ranks are given the same batches: {what}"
            yield Event(min(rows), SAME_DATA, message)
            return


def compare_weights(ranks: "Sequence[RankLog]") -> RankFacts | None:
    """Return whether the ranks hold the same weights, and why not; None where there is but one."""
    if len(ranks) < 2:
        return None
    sharded = {key for rank in ranks for key in rank.sharded}
    keys = dict.fromkeys(key for rank in ranks for key in rank.weights if key not in sharded)
    several = [copies for key in keys for copies in _copies(key, ranks) if len(copies.members) > 1]
    certain = [copies for copies in several if copies.is_meant()]
    certain = certain or [one for one in several if _has_scaled_gradients(one, several)]
    meant = [copies for copies in several if copies in certain or _belongs_to(copies, certain)]
    compared = {copies.key for copies in meant}
    facts = RankFacts(len(compared), len({copies.key for copies in several} - compared), len(sharded))
    breaches = [found for copies in meant if (found := _first_breach(copies))]
    breaches = breaches or list(_late_breaches(meant))
    if not breaches:
        return facts
    again = min((step for one in breaches if (step := _same_again(one)) is not None), default=None)
    if again is not None or any(origin.get("local") for one in breaches for origin in one.copies.origins):
        return replace(facts, averaged_at=again, is_averaged_rarely=True)
    first = _made_exact(min(breaches, key=lambda one: one.step))
    ends = [(one.copies, one.copies.common()[-1]) for one in breaches]
    last = max((copies.distance(step) for copies, step in ends), default=0.0)
    if first.distance is not None and max(first.distance, last) < _ROUNDING:
        return replace(facts, differs_by=max(first.distance, last))
    words, cure, place = cause_of(first, meant)
    odd = _odd_ones(first)
    disagreement = Disagreement(
        model=first.copies.key[0],
        name=first.copies.key[1],
        ranks=tuple(odd),
        step=first.culprit if first.is_exact and not first.is_between else first.step,
        after=None if first.is_exact else first.after,
        distance=first.distance,
        last_distance=last or None,
        message=f"{_subject(odd, first)} {_when(first)}{_how_far(first.distance, last)}: {words}",
        cure=cure,
        place=place,
    )
    return replace(facts, disagreement=disagreement)


def _belongs_to(copies: Replicas, meant: Sequence[Replicas]) -> bool:
    """Tell whether copies that began alike are left out of what is averaged: by name, or without a gradient."""
    model, name = copies.key
    owners = {one.key[1].rpartition(".")[0] for one in meant if one.key[0] == model}
    rows = [copies.row(step, 0) for step in copies.common()]
    is_missing = any(None in norms and any(norms) for norms in rows)
    began_alike = bool(rows) and len(set(copies.checksums(copies.common()[0]))) == 1
    return began_alike and bool(owners) and (is_missing or name.rpartition(".")[0] in owners)


def _has_scaled_gradients(copies: Replicas, several: Sequence[Replicas]) -> bool:
    """Tell whether all gradients of a model are those of another rank times one factor, though losses differ."""
    own = [one for one in several if one.key[0] == copies.key[0]]
    if len(own) < 2 or any(list(one.members) != list(copies.members) for one in own):
        return False
    found = 0
    for step in copies.common():
        rows = [[norm or 0.0 for norm in one.row(step, 0)] for one in own]
        ratios = [[norm / norms[0] for norm in norms] for norms in rows if norms[0]]
        is_one = len(ratios) > 1 and all(are_same(column) for column in zip(*ratios, strict=True))
        found += is_one and differ(copies.losses(step))
    return found >= TWICE


def _is_replicated(model: str, ranks: "Sequence[RankLog]") -> bool:
    """Tell whether every rank holds all of a model: by DistributedDataParallel, or the same bits at all times."""
    copies = [one for key in ranks[0].weights if key[0] == model for one in _copies(key, ranks)]
    return bool(copies) and all(
        all(one.origins) or all(len(set(one.checksums(step))) == 1 for step in one.common()) for one in copies
    )


def _copies(key: Key, ranks: "Sequence[RankLog]") -> list[Replicas]:
    """Return the ranks that hold a parameter, by the groups in which it is averaged; all where none is known."""
    held = {int(rank.begin.get("rank", n)): rank for n, rank in enumerate(ranks) if key in rank.weights}
    groups = {number: tuple(rank.origins.get(key, {}).get("group", ())) for number, rank in held.items()}
    known = dict.fromkeys(group for group in groups.values() if group) or {tuple(held): None}
    return [
        Replicas(key, {number: rank for number, rank in held.items() if number in group}) for group in known
    ]


def _first_breach(copies: Replicas) -> Breach | None:
    after = None
    for step in copies.common():
        values = copies.checksums(step)
        if len(set(values)) > 1:
            return Breach(copies, step, after, tuple(values), distance=copies.distance(step))
        after = step
    return None


def _late_breaches(meant: Sequence[Replicas]) -> Iterator[Breach]:
    """Give what differs only behind the last recorded step, by a few values of each parameter."""
    for copies in meant:
        ends = [rank.end or {} for rank in copies.members.values()]
        held = [key for key, (label, _) in any_rank(copies).trained.items() if label == copies.optimizer]
        place = str(held.index(copies.key))
        found = [
            {str(at): value for at, value in end.get("states", {}).get(copies.optimizer, {}).items()}.get(
                place
            )
            for end in ends
        ]
        values = [value for value in found if value is not None]
        n_steps = {end.get("steps") for end in ends}
        if len(values) == len(ends) and len(set(values)) > 1 and len(n_steps) == 1 and copies.common():
            yield Breach(copies, int(ends[0]["steps"]), copies.common()[-1], tuple(values))


def _same_again(breach: Breach) -> int | None:
    """Return a step after the breach that finds the copies the same again, None for none."""
    copies = breach.copies
    for step in copies.common():
        if step > breach.step and len(set(copies.checksums(step))) == 1:
            return step
    has_differed = False  # the few values may be none of those that do
    for step in _noted(copies):
        is_same = len({state[0] for state in _states(copies, step)}) == 1
        if step > breach.step and has_differed and is_same:
            return step
        has_differed |= step >= breach.step and not is_same
    return None


def _noted(copies: Replicas) -> list[int]:
    steps = [
        {step for label, step in rank.states if label == copies.optimizer} for rank in copies.members.values()
    ]
    return sorted(set.intersection(*steps))


def _states(copies: Replicas, step: int) -> list[tuple[int, int]]:
    return [rank.states[copies.optimizer, step] for rank in copies.members.values()]


def _made_exact(breach: Breach) -> Breach:
    """Find the very step, where a few values of all parameters were looked at before and after each."""
    if breach.step == 0 or breach.after == breach.step - 1:
        breach = replace(breach, is_exact=True)
    known = -1  # left the copies the same
    for step in _noted(breach.copies):
        if not (breach.after or 0) <= step <= breach.step:
            continue
        before, after = zip(*_states(breach.copies, step), strict=True)
        if len(set(before)) > 1:
            is_between = known == step - 1 >= 0
            return replace(breach, step=step, is_exact=is_between or breach.is_exact, is_between=is_between)
        if len(set(after)) > 1:
            return replace(breach, step=step + 1, is_exact=True) if step < breach.step else breach
        known = step
    return breach


def _odd_ones(breach: Breach) -> list[int]:
    """Return the ranks that are not as most; all of them where there is no majority."""
    numbers = list(breach.copies.members)
    (usual, n), *_ = Counter(breach.values).most_common(1)
    if 2 * n <= len(numbers):
        return numbers
    return [number for number, value in zip(numbers, breach.values, strict=True) if value != usual]


def _subject(odd: Sequence[int], breach: Breach) -> str:
    if len(odd) == len(breach.copies.members):
        return f"{ranks_named(odd)} hold different weights"
    return f"{ranks_named(odd)} {'hold' if len(odd) > 1 else 'holds'} other weights than the rest"


def _when(breach: Breach) -> str:
    if breach.step == 0:
        return "from the start"
    if breach.is_exact:
        return f"since step {breach.step if breach.is_between else breach.culprit}"
    return f"since one of the steps {breach.after or 0} to {breach.culprit}"


def _how_far(first: float | None, last: float) -> str:
    if first is None:
        return ""
    return f" (by {first:.2g} of their size" + (f", up to {last:.2g} at the end)" if last > first else ")")
