"""Choose the steps whose layers are recorded, and those whose loss is. Standard library only."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_OPENING = 20  # steps of all optimizers that are recorded at any cost
_FIRST = 4  # the same of each optimizer
_SHARE = 0.04  # of the time of the steps that recording may take after that
_ALLOWANCE_S = 0.02  # that it may take in addition
_FOLLOWED = 0.5  # of both, above which steps that are not recorded are not followed either
_WEIGHT = 0.1  # of the last plain step in the usual length of one


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

    What hooks cost outside of their own functions is seen only in the length of a step. It counts as far as the
    step took longer than a plain one usually does, up to as much again as was measured.

    Attributes:
        clock: returns CPU seconds of this process, which depend little on the load of the machine.
        n: steps of all optimizers so far.
    """

    clock: Callable[[], float] = time.process_time
    n: int = 0
    _begun: float = 0.0
    _ended: float = 0.0  # the last step
    _spent: float = 0.0
    _usual: float | None = None  # length of a plain step

    def take(self, seconds: float, is_plain: bool) -> None:
        """Add the time spent on a step that ends; a plain one was neither recorded nor followed."""
        now = self.clock()
        took, self._ended = now - self._ended, now
        if is_plain:
            usual = self._usual or took - seconds
            self._usual = usual + _WEIGHT * (min(took - seconds, 2 * usual) - usual)
        else:
            longer = took - self._usual if self._usual is not None else math.inf
            seconds = min(max(longer, seconds), 2 * seconds)
        if self.n <= _OPENING:
            self._begun = now
        else:
            self._spent += seconds

    def allows(self, step: int, is_recorded: bool = True) -> bool:
        """Tell whether a step, counted from 0 by its optimizer, may be recorded, or followed."""
        if self.n < _OPENING or step < _FIRST:
            return True
        most = _ALLOWANCE_S + _SHARE * (self.clock() - self._begun - self._spent)
        return self._spent <= (most if is_recorded else _FOLLOWED * most)
