"""The loss beside its criteria: by what factor it is one of them, and what guessing costs in its unit."""

import math
import statistics
from collections.abc import Sequence

from modelscope_cli.records.watch import ScalarSeries, TrainingFacts, WatchedCriterion

_FEW, _STEADY = 3, 0.2  # records; share of a ratio by which its quarters may differ
_EXACTLY, _PENALTY = 1e-4, 0.03  # of a ratio: rounding, and penalties that are small beside the criterion
_EVEN = 0.05  # nats


def has_positions(criterion: WatchedCriterion) -> bool:
    """Tell whether scores of a positive and negatives were joined, so that a label is the positive's position.

    That is always the same, or every position equally often in each batch. Guessing it is then no baseline.
    """
    shares = {share for share in criterion.series.commonest_label if share is not None}
    if criterion.made_by != "cat" or criterion.label_entropy is None or len(shares) != 1:
        return False
    return abs(criterion.label_entropy + math.log(shares.pop())) < _EVEN


def beside_the_loss(criterion: WatchedCriterion, losses: Sequence[ScalarSeries]) -> list[tuple[float, float]]:
    """Return the values of a criterion and the losses of the same steps, where they are finite."""
    loss_at = dict(pair for one in losses for pair in one.finite)
    pairs = zip(criterion.series.step, criterion.series.value, strict=True)
    return [
        (value, loss_at[step])
        for step, value in pairs
        if step in loss_at and value is not None and math.isfinite(value)
    ]


def scale_of(
    criterion: WatchedCriterion, losses: Sequence[ScalarSeries], steady: float = _STEADY
) -> float | None:
    """Return the ratio of the loss to the criterion's mean over its rows; None if it varies by more than `steady`.

    It is the number of rows for a sum over the batch, unless the script divides by it, and 4 for four accumulated
    passes; it varies if the loss has another term.
    """
    ratios = sorted(loss / value for value, loss in beside_the_loss(criterion, losses) if value)
    if len(ratios) < _FEW:
        return None
    middle = statistics.median(ratios)
    spread = ratios[3 * len(ratios) // 4] - ratios[len(ratios) // 4]
    return middle if spread <= steady * abs(middle) else None


def cost_of_guessing(facts: TrainingFacts, losses: Sequence[ScalarSeries]) -> float | None:
    """Return the cost of guessing in the unit of the loss, for a single criterion with a best constant.

    None where the loss has other terms as well: their share at chance is unknown.
    """
    trained = [one for one in facts.criteria if one.is_training]
    if len({(one.name, one.classes) for one in trained}) != 1:
        return None
    one = max(trained, key=lambda each: len(each.series.step))
    scale = scale_of(one, losses)
    if scale is None or scale <= 0:
        return None
    if abs(scale - 1) < _PENALTY:
        scale = 1.0  # what is small beside the criterion is no part of guessing
    elif scale_of(one, losses, _EXACTLY) is None:
        return None
    if has_positions(one):
        return scale * math.log(one.classes or 1)
    # The entropy is that of one label, and a sum of binary ones may be over many of a sample, such as its pixels.
    batches = {given.shape[0] for given in facts.inputs if given.shape}
    is_of_many = one.is_summed and one.name.startswith("binary") and batches.isdisjoint(one.series.rows)
    if one.classes and one.label_entropy is not None and not one.is_weighted and not is_of_many:
        return scale * one.label_entropy
    guesses = [value for value in one.series.guessing if value is not None]
    cost = scale * statistics.fmean(guesses) if guesses and len(guesses) == len(one.series.step) else 0.0
    return cost if cost > 0 else None  # a likelihood has no zero, and equal targets need no guess
