"""Judges trials: by the loss and the predictions, beside the same training unchanged."""

import math
from dataclasses import dataclass

from modelscope_cli.records.trials import A_LITTLE, BROKE, NO
from modelscope_cli.watching.trials.trial import Measure

LOSS, COST, RIGHT = "loss", "cost", "right"
_SURE = 3.0  # standard errors
_FALL = 0.1  # least fall of a training that learns, as a share of the loss at first
_HALF = 0.5  # of the fall with the change: one without it that falls further learns by itself
_STILL = 0.25, 0.1  # the same for changes that make healthy trainings better: of one with a fault, of any
_MORE_RIGHT = 0.05  # accuracy


@dataclass(frozen=True, slots=True)
class Scale:
    """How the trials of one script are compared.

    Attributes:
        what: `LOSS`, or `COST` where the predictions of classes make up the loss.
        start: the value before anything is learnt.
        has_fault: whether a rule found something.
    """

    what: str
    start: float
    has_fault: bool

    @classmethod
    def of(cls, base: Measure, chance: float | None, has_fault: bool, *, is_by_cost: bool) -> "Scale":
        """Return the scale for a script.

        Args:
            chance: cost of guessing, in the unit of what is compared; None if unknown.
        """
        what = COST if is_by_cost else LOSS
        start = base.first(what)
        return cls(what, start if chance is None else min(start, chance), has_fault)

    def fall(self, one: Measure) -> float:
        """Return how far a training has fallen; minus infinity if it broke."""
        return self.start - one.last(self.what)

    def is_better(self, one: Measure, base: Measure) -> bool:
        """Tell whether a training ends lower than another, beyond the noise."""
        error = math.hypot(one.error_of(self.what), base.error_of(self.what))
        last, before = one.last(self.what), base.last(self.what)
        return math.isfinite(last) and (not math.isfinite(before) or before - last > _SURE * error)

    def has_learnt(self, one: Measure) -> bool:
        """Tell whether a training has fallen by more than a little."""
        return self.fall(one) > _FALL * abs(self.start)

    def restores(self, one: Measure, base: Measure, *, is_general: bool) -> bool:
        """Tell whether a change makes a training learn that does not without it."""
        fall, without = self.fall(one), self.fall(base)
        if not self.is_better(one, base) or not self.has_learnt(one):
            return False
        share = (_STILL[not self.has_fault]) if is_general else _HALF
        if math.isfinite(without) and without > share * fall:
            return False
        right, before = one.last(RIGHT), base.last(RIGHT)
        return not math.isfinite(right) or not math.isfinite(before) or right - before > _MORE_RIGHT

    def helps(self, one: Measure, base: Measure) -> str:
        """Return `A_LITTLE`, `NO` or `BROKE`, for a change that has not been proved."""
        if one.n < min(base.n, 3) or (one.error is not None and one.n < base.n):
            return BROKE
        return A_LITTLE if self.is_better(one, base) else NO
