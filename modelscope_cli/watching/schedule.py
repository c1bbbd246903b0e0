"""Choose the steps whose layers are recorded, and those whose loss is. Standard library only."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import ClassVar

from modelscope_cli.rules.training.rule_types import SURE

_OPENING, _OPENING_S = 20, 2.0  # steps of all optimizers that are followed at any cost, up to these seconds
_EARLY, _EARLY_S = 64, 0.02  # the same that are recorded as planned; seconds after the opening
_STUCK = 1.0  # of the time so far that both may take while the loss does not fall: records find out why
_LOSSES, _FALLEN = 3, 0.02  # losses at each end that are compared, and the share by which they fall
_FIRST = 4  # the same of each optimizer
_AT_LATEST = 2  # times the last step that was recorded: the next record of an optimizer, at any cost
_SHARE = 0.01  # of the time of the steps that recording may take after that
_ALLOWANCE_S = 0.02  # that it may take in addition
_FOLLOWED = 0.5  # of both, above which steps that are not recorded are not followed either
_WEIGHT = 0.1  # of the last plain step in the usual length of one
_SEEN = 32  # first steps of all optimizers, none of which runs without hooks
_HOOKS_SHARE = 0.01  # of the time of the steps that the hooks of plain steps may take after that
_LONGEST = 32  # rounds without hooks, and
_FEWEST, _PER_RUN = 8, 16  # at most a 16th of the steps so far, but up to 8
_TRIED = 64  # rounds with hooks until the next trial of a round without, if hooks take little
_FEW, _MEASURED = 3, 9  # rounds whose median counts


def is_recorded(step: int, every: int | None, after: int | None = None) -> bool:
    """Tell whether the layers and parameters of a step, counted from 0, are recorded.

    With `after`, the number of an earlier step: whether those of any step after that one are.

    By default the interval grows with the step, with five records in each doubling: 38 in 300 steps, 80 in
    100,000. A change is recorded within a sixth of the time before it.
    """
    after = step - 1 if after is None else after
    if every is not None:
        return step // every != after // every
    return _is_due(step, after, young=16, per_doubling=5)


def is_noted(step: int, after: int) -> bool:
    """Tell whether loss and learning rates of a step are recorded: all of 512, 2,500 of 100,000.

    Args:
        after: the last step that was seen.
    """
    return _is_due(step, after, young=512, per_doubling=256)


def _is_due(step: int, after: int, young: int, per_doubling: int) -> bool:
    def age(step: int) -> int:
        return math.floor(per_doubling * math.log2(step))

    return after < young - 1 or age(step) != age(after)


@dataclass(slots=True)
class Budget:
    """Limits the time of recording to a share of the time of the steps.

    A record that exceeds the budget is made up for as soon as possible. The first steps are recorded as planned at
    nearly any cost, for longer if the loss does not fall, and one in each doubling after that, so that what the
    rules see depends little on the load of the machine. Other steps are followed, see `finite_flags`, at a lower
    budget.

    Threads that wait for a core spin, and a record among other programs may take twenty times as long as alone. The
    first steps therefore count as many times the shortest of their records.

    What hooks cost outside of their own functions is seen only in the length of a step. It counts as far as the
    step took longer than a plain one usually does, up to as much again as was measured.
    """

    NOTE: ClassVar[str] = "recording is slow relative to a step (--every 1 records all)"
    # Returns CPU seconds of this process, which depend little on the load of the machine
    clock: Callable[[], float] = time.process_time
    n: int = 0  # steps of all optimizers so far
    ends_at: float = math.inf  # the step before which the run is stopped
    was_plain: bool = False  # whether the last step was neither recorded nor followed
    _is_opening: bool = True
    _begun: float = 0.0
    _ended: float = 0.0  # the last step
    _spent: float = 0.0
    _least: float = math.inf  # that a record took
    _usual: float | None = None  # length of a plain step
    _losses: list[float] = field(default_factory=list)  # the early ones

    def see_loss(self, loss: float | None) -> None:
        """Take the loss of a step."""
        if loss is not None and len(self._losses) < _EARLY:
            self._losses.append(loss)

    def _is_within(self, seconds: float) -> bool:
        """Tell whether early records took no more than these seconds, or what a loss that does not fall allows."""
        if len(self._losses) >= 2 * _LOSSES:
            first, last = fmean(self._losses[:_LOSSES]), fmean(self._losses[-_LOSSES:])
            if not last < first - _FALLEN * abs(first):
                seconds = max(seconds, _STUCK * (self.clock() - self._begun - self._spent))
        return self._spent <= seconds

    def take(self, seconds: float, is_plain: bool) -> None:
        """Add the time spent on a step that ends."""
        now, self.was_plain = self.clock(), is_plain
        took, self._ended = now - self._ended, now
        if is_plain:
            usual = self._usual or took - seconds
            self._usual = usual + _WEIGHT * (min(took - seconds, 2 * usual) - usual)
        else:
            longer = took - self._usual if self._usual is not None else math.inf
            seconds = min(max(longer, seconds), 2 * seconds)
            self._least = min(self._least, seconds)
        is_first = self._is_opening and not is_plain
        self._spent = self._least * self.n if is_first else self._spent + seconds
        if self._is_opening and (self.n >= _OPENING or not self._is_within(_OPENING_S)):
            self._is_opening, self._begun, self._spent = False, now, 0.0

    def resume(self) -> None:
        """Leave out the time since the last step that was seen."""
        self._ended = self.clock()

    def is_last(self, step: int) -> bool:
        """Tell whether a step is one of the last, which show what lasts until the end."""
        return step >= self.ends_at - SURE

    def allows(self, step: int, after: int | None = None) -> bool:
        """Tell whether a step, counted from 0 by its optimizer, may be recorded.

        Args:
            after: the last step of that optimizer that was recorded; None asks whether `step` may be followed.
        """
        if (self._is_opening and self.n < _OPENING) or step < _FIRST or self.is_last(step):
            return True
        is_early = self.n < _EARLY and self._is_within(_EARLY_S)
        if after is not None and (is_early or step >= _AT_LATEST * after):
            return True
        most = _ALLOWANCE_S + _SHARE * (self.clock() - self._begun - self._spent)
        return self._spent <= (_FOLLOWED * most if after is None else most)


@dataclass(slots=True)
class Stretches:
    """Chooses stretches of steps without hooks, so that the hooks take a small share of the time of short steps.

    A stretch begins and ends with a step of the same optimizer, when each optimizer has stepped at least once since
    the last one: it leaves out whole rounds of their steps. Rounds with and without hooks are timed.
    """

    NOTE: ClassVar[str] = "steps are so short that some are counted but not recorded (--every 1 records all)"
    clock: Callable[[], float] = time.process_time  # returns CPU seconds of this process
    is_open: bool = False  # whether steps run without hooks
    is_barred: bool = False  # whether none may begin, as a step would be misread
    _last: int = 0  # the optimizer that ended the last round
    _left: int = 0  # rounds
    _begun: float = 0.0  # this round
    _is_plain: bool = False  # this round so far
    _stepped: set[int] = field(default_factory=set)  # in this round
    _recent: "deque[int]" = field(default_factory=lambda: deque(maxlen=16))
    _without: "deque[float]" = field(default_factory=lambda: deque(maxlen=_MEASURED))  # lengths of rounds
    _added: "deque[float]" = field(default_factory=lambda: deque(maxlen=_MEASURED))  # by hooks, to those
    _waiting: int = 0

    def begins(self, optimizer: int, n: int, was_plain: bool, is_next_plain: bool) -> bool:
        """Note a step with hooks, and tell whether a stretch without begins.

        Args:
            optimizer: its identity.
            n: steps of all optimizers so far.
            was_plain, is_next_plain: whether that step, and the next one, are neither recorded nor followed.
        """
        self._recent.append(optimizer)
        self._stepped.add(optimizer)
        self._is_plain &= was_plain
        if not self._stepped.issuperset(self._recent):
            return False
        now = self.clock()
        if self._is_plain and self._without:  # the load of the machine changes: beside those just before
            self._added.append(now - self._begun - median(self._without))
        self._last, self._begun, self._is_plain = optimizer, now, True
        self._stepped.clear()
        self._waiting -= 1
        if n < _SEEN or self.is_barred or not is_next_plain or self._waiting > 0:
            return False
        self._left = min(self._wanted(), _LONGEST, max(n // _PER_RUN, _FEWEST))
        self.is_open = self._left > 0
        self._waiting = 0 if self.is_open else _TRIED
        return self.is_open

    def _wanted(self) -> int:
        """Return for how many rounds without hooks those of one round are paid for."""
        if len(self._added) < _FEW:
            return _FEWEST
        return math.ceil(median(self._added) / (_HOOKS_SHARE * max(median(self._without), 1e-9))) - 1

    def ends(self, optimizer: int) -> bool:
        """Count a step without hooks, and tell whether the stretch ends with it."""
        self._recent.append(optimizer)
        if optimizer == self._last:
            self._left, begun, self._begun = self._left - 1, self._begun, self.clock()
            self._without.append(self._begun - begun)
        return self._left <= 0

    def end(self) -> None:
        """End the stretch."""
        self._begun, self._is_plain, self.is_open = self.clock(), True, False
        self._stepped.clear()
