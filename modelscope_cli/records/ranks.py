"""Whether several ranks hold the same weights: part of what `watch` returns."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Ranks that hold different weights, where they should hold the same.

    Attributes:
        model, name: the first parameter that differs; `ranks`: those that are not as most, all without a majority.
        step: the one that left the weights different, or before which they were written to.
        after: the last that found them the same, where it is not known which one it was since; else None.
        distance: by about which share of their size they differ at first, `last_distance` at the last record.
        cure: what to do about it; `place`: the line it is about.
    """

    model: str
    name: str
    ranks: tuple[int, ...]
    step: int
    after: int | None
    distance: float | None
    last_distance: float | None
    message: str
    cure: str
    place: str | None


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Whether several ranks hold the same weights.

    Attributes:
        compared: parameters that are meant to be the same on every rank.
        apart: those that nothing shows to be; `sharded`: those of which each rank holds a part.
        is_averaged_rarely: the weights differ between steps at which they are averaged; `averaged_at`: one of them.
        differs_by: no more than rounding; None for bits that are equal.
    """

    compared: int
    apart: int
    sharded: int
    is_averaged_rarely: bool = False
    averaged_at: int | None = None
    differs_by: float | None = None
    disagreement: Disagreement | None = None
