"""Judges trials: by the loss and the predictions, beside the same training unchanged."""

import math
from dataclasses import dataclass

from modelscope_cli.records.trials import A_LITTLE, BROKE, CROSS_ENTROPY, NO, OWN
from modelscope_cli.watching.trials.trial import Measured

LOSS, COST, RIGHT = "loss", "cost", "right"
_SAME = 1e-3  # relative difference, by which the script's loss is the mean cross-entropy of its predictions
_SURE = 3.0  # standard errors
FALL = 0.1  # least fall of a training that learns, as a share of the loss at first
_HALF = 0.5  # of the fall with the change: one without it that falls further learns by itself
_STILL = 0.25, 0.1  # the same for changes that make healthy trainings better: of one with a fault, of any
# Of the steps: a change that leaves out all of the last, or most in between, has only stopped the training
_MOST_OF, _SOME_OF = 0.9, 0.25
_FEWER_ERRORS = 0.9  # times the share of wrong predictions


@dataclass(frozen=True, slots=True)
class Scale:
    """How the trials of one script are compared.

    Attributes:
        what: `LOSS`, or `COST` where the predictions of classes make up the loss; `measure`: that in words.
        start: the value before anything is learnt.
        has_fault: whether a rule found something.
    """

    what: str
    start: float
    has_fault: bool
    measure: str = OWN

    @classmethod
    def of(cls, base: Measured, chance: float | None, has_fault: bool, *, is_by_cost: bool) -> "Scale":
        """Return the scale for a script.

        Args:
            chance: cost of guessing, in the unit of what is compared; None if unknown.
        """
        what = COST if is_by_cost else LOSS
        is_own = what == LOSS or math.isclose(base.last(COST), base.last(LOSS), rel_tol=_SAME)
        start = min(base.first(what), math.inf if chance is None else chance)
        return cls(what, start, has_fault, OWN if is_own else CROSS_ENTROPY)

    def fall(self, one: Measured) -> float:
        """Return how far a training has fallen; minus infinity if it broke."""
        last = one.last(self.what)
        return self._start_of(one) - last if math.isfinite(last) else -math.inf

    def is_better(self, one: Measured, base: Measured) -> bool:
        """Tell whether a training ends lower than another, beyond the noise."""
        last, before = one.last(self.what), base.last(self.what)
        error = math.hypot(one.error_of(self.what), base.error_of(self.what))
        if not math.isfinite(before) or before > self.start:  # what it is has no meaning
            before, error = self._start_of(one), one.error_of(self.what)
        return before - last > _SURE * error

    def has_learnt(self, one: Measured) -> bool:
        """Tell whether a training has fallen by more than a little."""
        return self.fall(one) > FALL * abs(self._start_of(one))

    def _start_of(self, one: Measured) -> float:
        """Return the value at first; with the change if there is none without it, as no loss is finite there."""
        return self.start if math.isfinite(self.start) else one.first(self.what)

    def predicts(self, one: Measured, base: Measured) -> bool:
        """Tell whether at most half of the predictions are wrong that are so without a change, at a lower cost."""
        wrong, before = 1 - one.last(RIGHT), 1 - base.last(RIGHT)
        return 0 <= wrong < _HALF * before <= 1 and one.last(COST) < base.last(COST)

    def restores(self, one: Measured, base: Measured, *, is_general: bool) -> bool:
        """Tell whether a change makes a training learn that does not without it."""
        fall, without = self.fall(one), self.fall(base)
        is_whole = one.reach >= _MOST_OF * base.reach and one.n >= _SOME_OF * base.n
        if not is_whole or not self.is_better(one, base) or not self.has_learnt(one):
            return False
        is_unbounded = is_general and one.last(self.what) < 0  # it falls further with any larger step
        if is_unbounded or without > self._share(is_general) * fall:
            return False
        wrong, before = 1 - one.last(RIGHT), 1 - base.last(RIGHT)  # not finite without labels of classes
        return not math.isfinite(wrong) or not math.isfinite(before) or wrong < _FEWER_ERRORS * before

    def can_restore(self, base: Measured, *, is_general: bool) -> bool:
        """Tell whether a training is bad enough for a change to restore it, if no loss is below zero."""
        return self.start <= 0 or self.fall(base) <= self._share(is_general) * self.start

    def _share(self, is_general: bool) -> float:
        return _STILL[not self.has_fault] if is_general else _HALF

    def helps(self, one: Measured, base: Measured) -> str:
        """Return `A_LITTLE`, `NO` or `BROKE`, for a change that has not been proved."""
        if not one.has_ended or one.n < min(base.n, 3) or (one.error is not None and one.n < base.n):
            return BROKE
        return A_LITTLE if self.is_better(one, base) else NO
