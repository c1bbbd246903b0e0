"""Which steps are looked at closely, and of which the loss is noted. Standard library only."""

import math


def is_recorded(step: int, every: int | None) -> bool:
    """Tell whether the layers and parameters of a step, counted from 0, are recorded.

    Left to itself the interval grows with age, so that five records fall into each doubling: 38 in 300 steps,
    80 in 100,000, and whatever happens is seen within a sixth of the time it took to happen.
    """
    return step % every == 0 if every is not None else _is_due(step, young=16, per_doubling=5)


def is_noted(step: int) -> bool:
    """Tell whether the loss, the learning rates and the time of a step are: all of 512, 2,500 of 100,000."""
    return _is_due(step, young=512, per_doubling=256)


def _is_due(step: int, young: int, per_doubling: int) -> bool:
    def age(step: int) -> int:
        return math.floor(per_doubling * math.log2(step))

    return step < young or age(step) != age(step - 1)
