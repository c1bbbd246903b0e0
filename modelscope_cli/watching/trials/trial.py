"""The types of trials: what is changed, what a run measured, and what is known before one is chosen."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.naming import layer_of
from modelscope_cli.records.training_facts import OptimizerFacts
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.trials.survey import Survey

_LAST, _FEWEST = 5, 3  # the last fifth of the steps; steps
_CORRELATED = 1.5  # factor of a standard error, as successive losses are correlated


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of a trial measured.

    Attributes:
        loss, cost, right: by step; the loss of the script, the cross-entropy and the accuracy of the predictions.
        reach: the last step, counted from 1: some in between may have been left out.
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
    reach: int = 0

    @property
    def n(self) -> int:
        return len(self.loss)

    def values(self, what: str) -> list[float]:
        """Return the values of `loss`, `cost` or `right`; what is missing or not finite is infinite."""
        values: tuple[float | None, ...] = getattr(self, what)
        return [math.inf if one is None or not math.isfinite(one) else one for one in values]

    def first(self, what: str) -> float:
        """Return the median over the first three steps, before much was learnt; infinite if none is finite."""
        values = [one for one in self.values(what)[:_FEWEST] if math.isfinite(one)]
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
class Data:
    """The tensor of numbers that enters a model, in the first recorded step."""

    shape: tuple[int, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class Clues:
    """What is known before trials are chosen: the record of the run, and the first run of the trials, unchanged."""

    record: WatchRecord
    survey: Survey
    base: Measured

    def has_found(self, codes: str) -> bool:
        """Whether a rule with one of these codes names a cause."""
        return any(one.code in codes.split() and one.follows is None for one in self.record.findings)

    @property
    def optimizers(self) -> Sequence[OptimizerFacts]:
        return self.record.facts.optimizers

    @property
    def criteria(self) -> set[str]:
        """Names of the criteria that the training minimises."""
        return {one.name for one in self.record.facts.criteria if one.is_training}

    @property
    def n_missing(self) -> int:
        """Number of parameters that should be trained and that no optimizer holds."""
        facts = ((one.optimizer, one.facts) for one in self.record.parameters)
        return sum(not optimizer and about is not None and about.requires_grad for optimizer, about in facts)

    @property
    def n_frozen(self) -> int:
        """Number of parameters that are frozen, of models of which others are trained."""
        facts = [(one.model, one.facts.requires_grad) for one in self.record.parameters if one.facts]
        trained = {model for model, is_trained in facts if is_trained}
        return sum(not is_trained for model, is_trained in facts if model in trained)

    @property
    def data(self) -> Data:
        """The input of a model; as if it were standardised where there is none of numbers."""
        for one in self.record.facts.inputs:
            series = one.series
            is_numbers = "float" in one.dtype and len(one.shape) > 1 and bool(series.step)
            if is_numbers and not one.type and not one.is_computed:
                figures = series.mean[0], series.std[0], series.min[0], series.max[0]
                if all(value is not None and math.isfinite(value) for value in figures):
                    return Data(one.shape, *(float(value or 0) for value in figures))
        return Data()

    @property
    def labels_alike(self) -> tuple[float, float]:
        """The mean share of the commonest label in a batch, and its share of all."""
        for one in self.record.facts.criteria:
            shares = [value for value in one.series.commonest_label if value is not None]
            if one.is_training and one.commonest_label is not None and shares:
                return statistics.fmean(shares), one.commonest_label
        return 0.0, 1.0

    @property
    def far_weights(self) -> tuple[float, str]:
        """How far the first weights are from the size that torch's layers draw, as a factor.

        That is 1 / sqrt(3 x fan-in), of `kaiming_uniform_` with a = sqrt(5). With the name, where it is most.
        """
        worst = 1.0, ""
        tables = {one.name for one in self.record.layers if one.type.startswith("Embedding")}
        for one in self.record.parameters:
            is_weight = len(one.shape) > 1 and layer_of(one.name) not in tables
            if is_weight and one.facts is not None and one.facts.start_rms > 0:
                quotient = one.facts.start_rms * math.sqrt(3 * math.prod(one.shape[1:]))
                worst = max(worst, (max(quotient, 1 / quotient), one.name))
        return worst
