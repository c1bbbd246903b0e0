"""The types of trials: what is changed, what a run measured, and what is known before one is chosen."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.trials.survey import Survey

_LAST, _FEWEST = 5, 3  # the last fifth of the steps; steps
_CORRELATED = 1.5  # factor of a standard error, as successive losses are correlated


@dataclass(frozen=True, slots=True)
class Measure:
    """What a run of a trial measured.

    Attributes:
        loss, cost, right: by step; the loss of the script, the cross-entropy and the accuracy of the predictions.
        has_acted: whether the change had anything to act on; error: the last line of a traceback.
        found: what an examination found.
    """

    loss: tuple[float | None, ...] = ()
    cost: tuple[float | None, ...] = ()
    right: tuple[float | None, ...] = ()
    has_acted: bool = False
    has_ended: bool = False
    error: str | None = None
    survey: Survey | None = None
    found: tuple[dict[str, Any], ...] = ()

    @property
    def n(self) -> int:
        return len(self.loss)

    def values(self, what: str) -> list[float]:
        """Return the values of `loss`, `cost` or `right`; what is missing or not finite is infinite."""
        values: tuple[float | None, ...] = getattr(self, what)
        return [math.inf if one is None or not math.isfinite(one) else one for one in values]

    def first(self, what: str) -> float:
        """Return the median over the first three steps, before much was learnt."""
        values = self.values(what)[:_FEWEST]
        return statistics.median(values) if values else math.inf

    def last(self, what: str) -> float:
        """Return the mean over the last fifth of the steps; infinite if one of them was not finite."""
        values = self._window(what)
        return statistics.fmean(values) if values else math.inf

    def error_of(self, what: str) -> float:
        """Return the standard error of `last`."""
        values = self._window(what)
        if len(values) < _FEWEST or not all(map(math.isfinite, values)):
            return 0.0
        return _CORRELATED * statistics.stdev(values) / math.sqrt(len(values))

    def _window(self, what: str) -> list[float]:
        return self.values(what)[-max(self.n // _LAST, _FEWEST) :]


@dataclass(frozen=True, slots=True)
class Clues:
    """What is known before trials are chosen: the record of the run, and the first run of the trials, unchanged."""

    record: WatchRecord
    survey: Survey
    base: Measure

    def has_found(self, codes: str) -> bool:
        """Whether a rule with one of these codes names a cause."""
        return any(one.code in codes.split() and one.follows is None for one in self.record.findings)
