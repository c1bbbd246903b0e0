"""Which channels of a rectifier gave nothing but zeros, in a form that is short and adds up. Standard library."""

from collections.abc import Iterator, Sequence
from typing import Any

MOST_NAMED = 64  # channels, in a record
_RECORDS = 8  # a channel that is silent in so many of them in a row is called dead

Alive = (
    tuple[bool, ...] | None
)  # per channel, whether any value was not zero; None where there are no channels


def pack(alive: Alive) -> list[int | str] | None:
    """Return how many channels there are, and the dead ones as the bits of a hexadecimal number."""
    if alive is None:
        return None
    return [len(alive), f"{sum(1 << channel for channel in dead_in(alive)):x}"]


def unpack(packed: Any) -> Alive:
    """Return what `pack` was given."""
    if packed is None:
        return None
    n_channels, digits = packed
    dead = int(digits, 16)
    if not 0 <= dead < 1 << n_channels:
        raise ValueError("dead channels that are not there")
    return tuple(not dead >> channel & 1 for channel in range(n_channels))


def alive_within(alive: Sequence[Alive]) -> Iterator[Alive]:
    """Give, for each record, the channels that were alive in it or in one of those before it.

    A channel that stays silent in one batch is not dead: half of a healthy layer's may be.
    """
    recent: list[tuple[bool, ...]] = []
    for one in alive:
        if one is None or (recent and len(recent[0]) != len(one)):
            recent = []
        if one is None:
            yield None
            continue
        recent = [*recent, one][-_RECORDS:]
        yield tuple(map(any, zip(*recent, strict=True)))


def dead_in(alive: Sequence[bool]) -> list[int]:
    return [channel for channel, is_alive in enumerate(alive) if not is_alive]


def dead_fraction(alive: Alive) -> float | None:
    return len(dead_in(alive)) / len(alive) if alive else None
