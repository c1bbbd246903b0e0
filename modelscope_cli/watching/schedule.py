"""Choose the steps whose layers are recorded, and those whose loss is. Standard library only."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_OPENING = 20  # steps that are recorded at any cost
_SHARE = 0.05  # of the time of the steps that recording may take after that
_ALLOWANCE_S = 0.05  # that it may take in addition
_FOLLOWED = 0.5  # of both, above which steps that are not recorded are not followed either


def is_recorded(step: int, every: int | None) -> bool:
    """Tell whether the layers and parameters of a step, counted from 0, are recorded.

    By default the interval grows with the step, with five records in each doubling: 38 in 300 steps, 80 in
    100,000. A change is recorded within a sixth of the time before it.
    """
    return step % every == 0 if every is not None else _is_due(step, young=16, per_doubling=5)


def is_noted(step: int) -> bool:
    """Tell whether loss, learning rates and time of a step are recorded: all of 512, 2,500 of 100,000."""
    return _is_due(step, young=512, per_doubling=256)


def _is_due(step: int, young: int, per_doubling: int) -> bool:
    def age(step: int) -> int:
        return math.floor(per_doubling * math.log2(step))

    return step < young or age(step) != age(step - 1)


@dataclass(slots=True)
class Budget:
    """Limits the time of recording to a share of the time of the steps.

    A record that exceeds the budget is made up for as soon as possible. Other steps are followed, see
    `finite_flags`, at a lower budget.

    Attributes:
        clock: returns CPU seconds of this process, which depend little on the load of the machine.
    """

    clock: Callable[[], float] = time.process_time
    _begun: float | None = None
    _spent: float = 0.0

    def take(self, step: int, seconds: float) -> None:
        """Add the time spent on a step."""
        if step >= _OPENING:
            self._spent += seconds

    def allows(self, step: int, is_recorded: bool = True) -> bool:
        """Tell whether a step may be recorded, or followed."""
        now = self.clock()
        if step < _OPENING or self._begun is None:
            self._begun = now
            return True
        most = _ALLOWANCE_S + _SHARE * (now - self._begun - self._spent)
        return self._spent <= (most if is_recorded else _FOLLOWED * most)
