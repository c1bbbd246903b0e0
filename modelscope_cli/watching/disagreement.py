"""Find ranks that should hold the same weights and do not, since when, and why."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from modelscope_cli.records.naming import counted
from modelscope_cli.records.training_facts import Disagreement, RankFacts
from modelscope_cli.records.watch import SAME_DATA, Event
from modelscope_cli.watching.rank_log import RankLog

Key = tuple[str, str]  # model, name of the parameter
_TWICE = 2  # steps after which ranks with different data agree, which cannot be chance
_SAME = 1e-5  # relative, of norms in float32; an all-reduce gives every rank the same sum
_ENOUGH = 3  # recorded steps
_ROUNDING = 1e-6  # relative, of weights: sums in another order


@dataclass(frozen=True, slots=True)
class Replicas:
    """The copies of a parameter on several ranks, `members` by rank."""

    key: Key
    members: Mapping[int, RankLog]

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
        """Return the approximate relative difference of the weights."""
        checksums = [rank.weights[self.key][step] for rank in self.members.values()]
        sums, norm = [signed for _, signed, _ in checksums], max(norm for *_, norm in checksums)
        return (max(sums) - min(sums)) / norm if norm else 0.0

    def row(self, step: int, column: int) -> list[float | None]:
        rows = [rank.parameters.get(self.key, {}).get(step) for rank in self.members.values()]
        return [None if row is None else row[column] for row in rows]

    def losses(self, step: int) -> list[float | None]:
        steps = [rank.steps.get((self.optimizer, step)) for rank in self.members.values()]
        return [None if one is None else one.loss for one in steps]

    def should_be_equal(self) -> bool:
        """Tell whether the copies should be equal: by DistributedDataParallel, or because they were averaged.

        Ranks whose losses differ have different data; if their gradients, or the weights after the step, are equal
        nevertheless, they were averaged.
        """
        if all(self.origins):
            return True
        n_averaged, steps = 0, self.common()
        for step in steps:
            norms = self.row(step, 0)
            n_averaged += _differ(self.losses(step)) and any(norms) and _are_same(norms)
        for before, step in pairwise(steps):
            now = self.checksums(step)
            is_changed = self.checksums(before) != now and _differ(self.losses(step - 1))
            n_averaged += is_changed and len(set(now)) == 1
        return n_averaged >= _TWICE


@dataclass(frozen=True, slots=True)
class Breach:
    """The step from which on copies differ."""

    copies: Replicas
    step: int  # the first recorded one before which they differ
    after: int | None  # the last recorded one before which they were equal, None for none
    values: tuple[int, ...]  # checksum of each rank
    distance: float | None = None  # at `step`; None if unknown

    @property
    def is_exact(self) -> bool:
        """Whether one step caused the difference: there is no other between the records."""
        return self.step == 0 or self.after == self.step - 1

    @property
    def cause_step(self) -> int:
        return max(self.step - 1, 0)

    @property
    def farthest(self) -> float | None:
        """Largest relative difference of the copies; None for a breach after the last record."""
        later = [step for step in self.copies.common() if step >= self.step]
        return max(map(self.copies.distance, later), default=None)


def _cause_of(breach: Breach, replicas: Sequence[Replicas]) -> tuple[str, str, str | None]:
    """Return why the copies differ, a hint, and the line of the script."""
    copies, step = breach.copies, breach.cause_step
    made_at = next((origin.get("made") for origin in copies.origins if origin), None)
    is_parallel = all(copies.origins)
    if breach.step == 0:
        words = "they differ before the first step"
        if is_parallel:
            words += ", so they were changed after DistributedDataParallel was made"
            return words, _MAKE_LAST, made_at
        return f"{words}, and only the gradients are averaged", _BROADCAST, made_at
    if is_parallel:
        passes = {number: _passes(rank, copies.optimizer, step) for number, rank in copies.members.items()}
        if without_sync := [n for n, (averaged, alone, _) in passes.items() if alone and not averaged]:
            cause = f"every backward pass of {_ranks_named(without_sync)} runs inside no_sync()"
            return cause, _NO_SYNC, made_at
        if bypassing := [n for n, (averaged, alone, _) in passes.items() if not alone and not averaged]:
            called = _any_rank(copies).facts.models.get(copies.key[0])
            where = called.called if called is not None else None
            cause = f"the forward pass of {_ranks_named(bypassing)} bypasses DistributedDataParallel"
            return cause + (f", made at {made_at}" if made_at else ""), _CALL_IT, where
        if any(lost for _, _, lost in passes.values()):
            words = "the model was moved or cast after DistributedDataParallel was made"
            return f"{words}, which loses its hooks", _MAKE_LAST, made_at
    return (*_gradient_cause(breach, replicas), None if is_parallel else made_at)


def _gradient_cause(breach: Breach, replicas: Sequence[Replicas]) -> tuple[str, str]:
    """Return the cause according to the norms of gradients at the step of the breach."""
    numbers = list(breach.copies.members)
    # Averaged gradients are equal even if the weights are not, so a later step can be used, too.
    step = next((step for step in breach.copies.common() if step >= breach.cause_step), breach.cause_step)
    rows = [(one, one.row(step, 0)) for one in replicas if list(one.members) == numbers]
    gradients = [(one, [norm or 0.0 for norm in norms]) for one, norms in rows if any(norms)]
    differing = [(one, norms) for one, norms in gradients if not _are_same(norms)]
    if not differing:
        updates = breach.copies.row(step, 2)
        is_written_to = breach.is_exact and None not in updates and _are_same(updates)
        if is_written_to:
            return f"they change after step {step} without an optimizer", _WRITE_ALIKE
        return _UNKNOWN
    first, norms_of_first = differing[0]
    usable = [norms for _, norms in differing if norms[0]]
    if len(usable) == len(gradients) and (ratios := _common_ratios(usable)):
        n, ratio = max(zip(numbers, ratios, strict=True), key=lambda pair: abs(math.log(pair[1] or 1e-30)))
        words = f"every gradient of rank {n} is {ratio:.3g} times that of rank {numbers[0]}"
        return f"{words}, clipped or scaled on one of them only", _CLIP_ALIKE
    each = " and ".join(f"{norm:.3g} on rank {n}" for n, norm in zip(numbers, norms_of_first, strict=True))
    return f"the norm of the gradient of {first.key[1]} is {each}", _AVERAGE


def _common_ratios(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the ratios of each rank's norm to that of the first, if equal for several gradients; else none."""
    ratios = [[norm / norms[0] for norm in norms] for norms in rows]
    return ratios[0] if len(ratios) > 1 and all(map(_are_same, zip(*ratios, strict=True))) else []


_MAKE_LAST = (
    "make DistributedDataParallel once the model is complete, on its device, with its weights loaded and "
    "requires_grad set"
)
_BROADCAST = "broadcast the weights of rank 0 before the first step, or set the same seed on every rank"
_WRITE_ALIKE = (
    "change weights outside of optimizer.step() the same way on every rank, or broadcast them afterwards"
)
_NO_SYNC = "use no_sync() for all but the last backward pass before each step"
_CALL_IT = "call the DistributedDataParallel object itself, not its .module or the original model"
_CLIP_ALIKE = "clip and scale gradients the same way on every rank, after the backward pass"
_AVERAGE = "average the gradients in every step, and treat them the same way on every rank afterwards"
_UNKNOWN = (
    "their gradients agree where they were recorded",
    "use the same optimizer, rates and options on every rank, and take or skip each step on all of them; "
    "--every 1 records each step",
)


def _passes(rank: RankLog, optimizer: str, step: int) -> tuple[int, int, bool]:
    """Return the passes through DistributedDataParallel up to a step since the record before it, as the log counts
    them from the start, and whether the hooks are lost then or later."""
    passes = {at: one for (label, at), one in rank.passes.items() if label == optimizer}
    averaged, alone, _ = passes.get(step, (1, 0, False))
    before = passes.get(max((at for at in passes if at < step), default=-1), (0, 0, False))
    is_lost = any(lost for at, (_, _, lost) in passes.items() if at >= step)
    return averaged - before[0], alone - before[1], is_lost


def _any_rank(copies: Replicas) -> RankLog:
    return next(iter(copies.members.values()))


def _ranks_named(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _differ(values: Sequence[float | None]) -> bool:
    numbers = [value for value in values if value is not None]
    return len(numbers) == len(values) and not _are_same(numbers)


def _are_same(values: Sequence[float | None]) -> bool:
    """Compare norms, including NaN and infinity."""
    first, *others = values
    return all(_is_same(first, other) for other in others)


def _is_same(a: float | None, b: float | None) -> bool:
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return a == b or str(a) == str(b)
    return math.isclose(a, b, rel_tol=_SAME, abs_tol=1e-12)


def find_other_ends(ranks: Sequence[RankLog]) -> Iterator[Event]:
    """Yield every rank with another exit code than the first, or another number of steps than most."""
    if len(ranks) < 2:
        return
    usual = statistics.median_low(sorted(rank.n_steps for rank in ranks))
    for number, rank in enumerate(ranks):
        code, steps = rank.exit_code, counted(rank.n_steps, "step")
        if code not in (0, ranks[0].exit_code):
            how = "without finishing its log" if code is None else f"with exit code {code}"
            yield Event(rank.n_steps, "rank", f"rank {number} ended {how}, after {steps}")
        if rank.n_steps != usual:
            yield Event(rank.n_steps, "rank", f"rank {number} took {steps}, the others {usual}")


def find_same_data(ranks: Sequence[RankLog]) -> Iterator[Event]:
    """Yield the ranks that all got the same batches, by all input statistics at every step that all recorded."""
    if len(ranks) < 2:
        return
    by_rank = [{one.key: one.rows for one in rank.facts.inputs} for rank in ranks]
    for key, rows in by_rank[0].items():
        others = [inputs.get(key, {}) for inputs in by_rank[1:]]
        # Which steps a rank records depends on its time.
        common = {step: row for step, row in rows.items() if all(step in other for other in others)}
        varies = len({tuple(row) for row in common.values()}) > 1
        is_equal = all(other[step] == row for step, row in common.items() for other in others)
        is_alike = len(common) >= _ENOUGH and varies and is_equal
        # Ranks that share the work on a batch need the same batch.
        if is_alike and _is_replicated(key[0], ranks):
            equal = f"the statistics of {key[1]} of {key[0]} are equal"
            yield Event(min(common), SAME_DATA, f"all {len(ranks)} ranks receive the same batches: {equal}")
            return


def compare_weights(ranks: Sequence[RankLog]) -> RankFacts | None:
    """Return whether the ranks hold the same weights, and why not; None for a single rank."""
    if len(ranks) < 2:
        return None
    sharded = {key for rank in ranks for key in rank.sharded}
    keys = dict.fromkeys(key for rank in ranks for key in rank.weights if key not in sharded)
    several = [copies for key in keys for copies in _copies(key, ranks) if len(copies.members) > 1]
    certain = [copies for copies in several if copies.should_be_equal()]
    certain = certain or [one for one in several if _has_scaled_gradients(one, several)]
    replicas = [copies for copies in several if copies in certain or _belongs_to(copies, certain)]
    compared = {copies.key for copies in replicas}
    facts = RankFacts(len(compared), len({copies.key for copies in several} - compared), len(sharded))
    breaches = [breach for copies in replicas if (breach := _first_breach(copies))]
    breaches = breaches or list(_late_breaches(replicas))
    if not breaches:
        return facts
    # A bias before a norm hardly changes, and may be equal again by chance.
    apart = [one for one in breaches if one.farthest is None or one.farthest >= _ROUNDING]
    agreements = [step for one in apart if (step := _same_again(one)) is not None]
    if 2 * len(agreements) > len(apart):
        return replace(facts, averaged_at=min(agreements, default=None), is_averaged_rarely=True)
    if not apart:
        return replace(facts, differs_by=max(one.farthest or 0.0 for one in breaches))
    first = min(apart, key=lambda one: one.step)
    last = max(one.copies.distance(one.copies.common()[-1]) for one in apart)
    words, cure, place = _cause_of(first, replicas)
    minority = _minority(first)
    disagreement = Disagreement(
        model=first.copies.key[0],
        name=first.copies.key[1],
        ranks=tuple(minority),
        step=first.cause_step if first.is_exact else first.step,
        after=None if first.is_exact else first.after,
        distance=first.distance,
        message=f"{_subject(minority, first)} {_when(first)}{_how_far(first.distance, last)}: {words}",
        cure=cure,
        place=place,
    )
    return replace(facts, disagreement=disagreement)


def _belongs_to(copies: Replicas, replicas: Sequence[Replicas]) -> bool:
    """Tell whether copies that began equal are excluded from averaging: by name, or without a gradient."""
    model, name = copies.key
    owners = {one.key[1].rpartition(".")[0] for one in replicas if one.key[0] == model}
    rows = [copies.row(step, 0) for step in copies.common()]
    is_missing = any(None in norms and any(norms) for norms in rows)
    began_alike = bool(rows) and len(set(copies.checksums(copies.common()[0]))) == 1
    return began_alike and bool(owners) and (is_missing or name.rpartition(".")[0] in owners)


def _has_scaled_gradients(copies: Replicas, several: Sequence[Replicas]) -> bool:
    """Tell whether the gradients of ranks differ by one factor for the whole model, though losses differ."""
    of_model = [one for one in several if one.key[0] == copies.key[0]]
    if len(of_model) < 2 or any(list(one.members) != list(copies.members) for one in of_model):
        return False
    n_scaled = 0
    for step in copies.common():
        rows = [[norm or 0.0 for norm in one.row(step, 0)] for one in of_model]
        has_factor = bool(_common_ratios([norms for norms in rows if norms[0]]))
        n_scaled += has_factor and _differ(copies.losses(step))
    return n_scaled >= _TWICE


def _is_replicated(model: str, ranks: Sequence[RankLog]) -> bool:
    """Tell whether every rank holds the whole model: by DistributedDataParallel, or always equal bits."""
    copies = [one for key in ranks[0].weights if key[0] == model for one in _copies(key, ranks)]
    return bool(copies) and all(
        all(one.origins) or all(len(set(one.checksums(step))) == 1 for step in one.common()) for one in copies
    )


def _copies(key: Key, ranks: Sequence[RankLog]) -> list[Replicas]:
    """Return the ranks that hold a parameter, by the groups that average it; one group of all if unknown."""
    holders = {int(rank.begin.get("rank", n)): rank for n, rank in enumerate(ranks) if key in rank.weights}
    groups = {number: tuple(rank.origins.get(key, {}).get("group", ())) for number, rank in holders.items()}
    named_groups = dict.fromkeys(group for group in groups.values() if group) or {tuple(holders): None}
    return [
        Replicas(key, {number: rank for number, rank in holders.items() if number in group})
        for group in named_groups
    ]


def _first_breach(copies: Replicas) -> Breach | None:
    after = None
    for step in copies.common():
        values = copies.checksums(step)
        if len(set(values)) > 1:
            return Breach(copies, step, after, tuple(values), distance=copies.distance(step))
        after = step
    return None


def _late_breaches(replicas: Sequence[Replicas]) -> Iterator[Breach]:
    """Yield the breaches after the last recorded step, found by the checksums at the end."""
    for copies in replicas:
        ends = [rank.end or {} for rank in copies.members.values()]
        keys = [key for key, (label, _) in _any_rank(copies).trained.items() if label == copies.optimizer]
        place = str(keys.index(copies.key))
        checksums = [end.get("checksums", {}).get(copies.optimizer, {}) for end in ends]
        values = [value for one in checksums for at, value in one.items() if str(at) == place]
        n_steps = {end.get("steps") for end in ends}
        if len(values) == len(ends) and len(set(values)) > 1 and len(n_steps) == 1 and copies.common():
            yield Breach(copies, int(ends[0]["steps"]), copies.common()[-1], tuple(values))


def _same_again(breach: Breach) -> int | None:
    """Return a step after the breach before which the copies are equal again; None without one."""
    later = (step for step in breach.copies.common() if step > breach.step)
    return next((step for step in later if len(set(breach.copies.checksums(step))) == 1), None)


def _minority(breach: Breach) -> list[int]:
    """Return the ranks that differ from the majority; all of them without a majority."""
    numbers = list(breach.copies.members)
    (usual, n), *_ = Counter(breach.values).most_common(1)
    if 2 * n <= len(numbers):
        return numbers
    return [number for number, value in zip(numbers, breach.values, strict=True) if value != usual]


def _subject(odd: Sequence[int], breach: Breach) -> str:
    if len(odd) == len(breach.copies.members):
        return f"{_ranks_named(odd)} hold different weights"
    return f"{_ranks_named(odd)} {'hold' if len(odd) > 1 else 'holds'} different weights from the rest"


def _when(breach: Breach) -> str:
    if breach.step == 0:
        return "from the start"
    if breach.is_exact:
        return f"since step {breach.cause_step}"
    return f"since one of the steps {breach.after or 0} to {breach.cause_step}"


def _how_far(first: float | None, last: float) -> str:
    if first is None:
        return ""
    return f" (by {first:.2g} of their size" + (f", up to {last:.2g} at the end)" if last > first else ")")
