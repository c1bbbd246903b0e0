"""Which steps are looked at closely, and of which the loss is noted. Standard library only."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_OPENING = 20  # steps that are recorded whatever it takes
_SHARE = 0.05  # of the time of the steps, that looking at them may take from then on
_ALLOWANCE_S = 0.05  # that it may take beside
_FOLLOWED = 0.5  # of both, above which steps that are not recorded are not looked into either


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


@dataclass(slots=True)
class Budget:
    """Keeps the time that it takes to look into steps below a share of theirs.

    A step that is due to be recorded and cannot be afforded is made up for as soon as one can. In the others what
    layers give is followed, see `finite_flags`, while less is spent.

    Attributes:
        clock: gives CPU seconds of this process, which hardly depend on what else the machine does.
    """

    clock: Callable[[], float] = time.process_time
    _begun: float | None = None
    _spent: float = 0.0

    def take(self, step: int, seconds: float) -> None:
        """Note what it took to look into a step."""
        if step >= _OPENING:
            self._spent += seconds

    def allows(self, step: int, is_recorded: bool = True) -> bool:
        """Tell whether a step may be recorded, or else followed."""
        now = self.clock()
        if step < _OPENING or self._begun is None:
            self._begun = now
            return True
        most = _ALLOWANCE_S + _SHARE * (now - self._begun - self._spent)
        return self._spent <= (most if is_recorded else _FOLLOWED * most)
