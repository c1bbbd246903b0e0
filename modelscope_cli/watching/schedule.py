"""Which steps are looked at closely. Standard library only."""

import math

_YOUNG = 16  # steps, every one of which is recorded
_PER_DOUBLING = 6  # afterwards


def is_recorded(step: int, every: int | None) -> bool:
    """Tell whether a step, counted from 0, is recorded.

    Left to itself the interval grows with age, so that six records fall into each doubling: 42 in 300 steps,
    92 in 100,000, and whatever happens is seen within an eighth of the time it took to happen.
    """
    if every is not None:
        return step % every == 0
    return step < _YOUNG or _age(step) != _age(step - 1)


def _age(step: int) -> int:
    return math.floor(_PER_DOUBLING * math.log2(step))
