"""Ranks that should hold the same weights, and do not. Standard library only."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from modelscope_cli.records.naming import counted
from modelscope_cli.records.watch import SAME_DATA, Event

if TYPE_CHECKING:
    from modelscope_cli.watching.read_facts import FactsLog

_ENOUGH = 3  # recorded steps
_TOLERANCE = 1e-4  # relative; an all-reduce gives every rank the very same sum


class Rank(Protocol):
    """What is known of one rank: figures of each parameter by step, which are of its own shard, how far it came."""

    @property
    def parameters(self) -> dict[tuple[str, str], dict[int, list[float | None]]]: ...
    @property
    def sharded(self) -> set[tuple[str, str]]: ...
    @property
    def facts(self) -> "FactsLog": ...
    @property
    def n_steps(self) -> int: ...
    @property
    def exit_code(self) -> int | None: ...


def find_disagreements(ranks: Sequence[Rank]) -> Iterator[Event]:
    """Name every rank whose gradients or weights, as the optimizer sees them, are not those of most others."""
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
    named: set[int] = set()
    whole = {key: steps for key, steps in ranks[0].parameters.items() if key not in ranks[0].sharded}
    places = [(step, key) for key, steps in whole.items() for step in steps]
    for step, key in sorted(places):
        rows = [rank.parameters.get(key, {}).get(step) for rank in ranks]
        for what, column in (("gradient", 0), ("weight", 1)):
            norms = [None if row is None else row[column] for row in rows]
            for number in _odd_ones(norms):
                if number not in named:
                    named.add(number)
                    message = f"rank {number} disagrees: from step {step} on its {what} of {key[1]} differs"
                    yield Event(step, "rank", message)


def find_same_data(ranks: Sequence[Rank]) -> Iterator[Event]:
    """Tell of ranks that were all given the very same batches: by every figure of what entered, at every step."""
    if len(ranks) < 2:
        return
    seen = [{one.key: one.rows for one in rank.facts.inputs} for rank in ranks]
    for key, rows in seen[0].items():
        others = [held.get(key) for held in seen[1:]]
        varies = len({tuple(row) for row in rows.values()}) > 1
        if len(rows) >= _ENOUGH and varies and all(other == rows for other in others):
            what = f"{key[1]} of {key[0]} agrees in every figure"
            message = f"all {len(ranks)} ranks are given the same batches: {what}"
            yield Event(min(rows), SAME_DATA, message)
            return


def _odd_ones(norms: list[float | None]) -> list[int]:
    finite = [norm for norm in norms if norm is not None and math.isfinite(norm)]
    # Of two that differ nobody knows which is right; the first one's word counts.
    middle = norms[0] if len(norms) == 2 else statistics.median_low(finite) if finite else None
    return [i for i, norm in enumerate(norms) if not _is_same(norm, middle)]


def _is_same(a: float | None, b: float | None) -> bool:
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return a == b or str(a) == str(b)
    return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-12)
