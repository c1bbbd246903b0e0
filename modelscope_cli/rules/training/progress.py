"""Judge whether a training learns: yes, no, or unknown. Standard library only.

By the fall of the loss compared with its noise, and, if the criterion was observed, by the accuracy compared with
that of guessing the commonest label.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from modelscope_cli.records.naming import percent
from modelscope_cli.records.run import luck_of
from modelscope_cli.records.training_facts import OptimizerFacts
from modelscope_cli.records.watch import LOOSE, POLICY, Event, ScalarSeries, TrainingFacts, WatchedCriterion
from modelscope_cli.rules.training.guessing import cost_of_guessing, has_positions

MIN_STEPS = 20  # fewer cannot show a trend of the loss
FEW_LABELS = 4000  # a run that is no better than guessing after fewer may only have begun
_PATIENCE = 50  # steps before an unchanged loss counts against a run
_MOST_WINDOW = 50  # steps at either end
_SURE = 3.0  # standard errors
_CORRELATED = 1.5  # factor of the standard error, as successive losses are correlated
_FALL = 0.05  # least fall, as a share of the loss at first
_FLAT = 0.1  # largest fall of a flat loss, as a share of the loss at first
_WARM = 0.1  # share of the highest learning rate; steps before it are warm-up
AT_CHANCE = 0.97  # share of the cost of guessing; above it nothing has been learnt yet
_LONG = 150  # steps after which a flat loss at the cost of guessing shows that nothing is learnt
_GOES_ON = 0.1  # share of the whole fall
_RISEN = 1.5  # times the very first loss
_FEW_LATE = 5  # losses of the last steps, at least
_FEW = 3  # steps
_MARGIN = 0.05  # of accuracy, above guessing the commonest label
LUCKY = 0.01  # probability of an accuracy by guessing
_IMBALANCED = 0.8  # share of the commonest label: guessing it is right so often that accuracy says little
_EVALUATED = 100  # labels; evaluations of fewer are taken together
_QUEUE = 8  # times the rows of a batch
_GROWN = 2.0  # times the cost of guessing at first
_ONE_POINT = 0.97  # of the loss if all outputs were the same point; above it, samples are alike
_CONSTANT, _ACCUMULATED = 0.02, 1.1  # share by which that loss may vary; backward passes a step
_NO_MARGIN = 0.05  # of the loss at first
_LOW = 0.5  # share of the cost of guessing; a loss that stays below it need not fall


@dataclass(frozen=True, slots=True)
class LossCourse:
    """The course of one loss."""

    optimizer: str
    first: float  # the first value
    early: float  # mean over the first steps
    start: float  # the level from which a fall counts: `early`, but at most the first value plus its noise
    end: float  # mean over the last steps
    lowest_end: float  # the lowest of the last values
    middle: float  # the mean over a window in the middle of the run, as long as that of `end`
    least: float  # the lowest mean over any window of that length
    error: float  # the standard error of `start` - `end`
    n: int  # steps with a finite loss
    has_broken: bool  # it became NaN or infinite and stayed so
    has_been_negative: bool  # it was below zero at some step

    def began(self, write: Callable[[float], str] = "{:.3g}".format) -> str:
        """Return in words where it began; the first value too if the loss rose at once."""
        rose = f"{write(self.first)} at the first step, " if self.has_risen_at_once else ""
        return f"{rose}{write(self.early)} over the first steps"

    @property
    def has_risen_at_once(self) -> bool:
        return self.start < self.early

    @property
    def has_fallen(self) -> bool | None:
        """Whether it is lower at the end than at first; None if the noise is too large to tell."""
        if self.has_broken:
            return False
        if self.n < MIN_STEPS:
            return None
        fall, scale = self.start - self.end, max(abs(self.start), 1e-12)
        if fall > _SURE * self.error and fall > _FALL * scale:
            return True
        return False if fall + 2 * self.error < _FLAT * scale else None

    @property
    def is_falling(self) -> bool:
        """Whether the second half took off a good part of the fall: where it ends is not yet known."""
        fall = self.middle - self.end
        return self.has_fallen is True and fall > 2 * self.error and fall > _GOES_ON * (self.start - self.end)

    @property
    def has_risen(self) -> bool:
        """Whether it is clearly higher at the end than at first."""
        rise = self.end - self.start
        is_beyond_noise = rise > _SURE * self.error and rise > _FLAT * abs(self.start)
        is_never_back = self.first > 0 and self.lowest_end > _RISEN * self.first
        return self.n >= MIN_STEPS and (is_beyond_noise or is_never_back)


@dataclass(frozen=True, slots=True)
class CourseOfTraining:
    """The evidence on whether a run learns."""

    losses: tuple[LossCourse, ...]  # one an optimizer
    # Cost of guessing by the frequencies of the labels, in the unit of the loss; None if unknown
    chance: float | None
    # accuracy, guessed: over the last third of the records, of the predictions and of the commonest label
    accuracy: float | None
    guessed: float | None
    # Optimizers with losses of their own take turns, so that one may rise as another falls
    is_adversarial: bool
    moves: str | None  # why its loss need not fall although the model learns; None if it has to
    learns: bool | None  # the verdict; None if unknown
    # The loss if all outputs were the same point; None if unknown, or if it varies
    of_one_point: float | None = None

    @property
    def main(self) -> LossCourse | None:
        """The loss of the optimizer that has the most of them."""
        return max(self.losses, key=lambda one: one.n, default=None)

    @property
    def right(self) -> str:
        """Return the accuracy in words, after a semicolon; empty where it is not known."""
        if self.accuracy is None or self.guessed is None:
            return ""
        return f"; accuracy {percent(self.accuracy, 1)} (chance {percent(self.guessed, 1)})"

    @property
    def is_measured(self) -> bool:
        """Whether the cost of guessing or the accuracy is known."""
        return self.chance is not None or self.accuracy is not None


def follow(
    loss: Sequence[ScalarSeries],
    lr: Sequence[ScalarSeries],
    facts: TrainingFacts,
    events: Sequence[Event] = (),
) -> CourseOfTraining:
    """Return the course of a training."""
    courses = tuple(one for series in loss if (one := course_of(series, lr)) is not None)
    # SAM's first change of the weights is not an optimizer.
    if max((one.n for one in courses), default=0) >= MIN_STEPS:
        courses = tuple(one for one in courses if one.n >= _FEW or one.has_broken)
    loose = {one.optimizer for one in facts.optimizers if one.is_loose}
    of_models = tuple(one for one in courses if one.optimizer not in loose)
    is_loose = bool(courses and not of_models)
    courses = of_models or courses
    ends = [series.step[-1] for series in loss if series.step]
    classes = [
        one
        for one in facts.criteria
        if one.is_training and one.classes and not one.is_weighted
        if one.series.step
        and 2 * one.series.step[-1] >= min(ends, default=0)  # else it tells of the beginning
    ]
    main = max(classes, key=lambda one: len(one.series.step), default=None)
    accuracy, guessed, rows = accuracy_of(main) if main is not None else (None, None, 0)
    chance = cost_of_guessing(facts, loss)
    is_adversarial = _alternate(courses, facts.optimizers)
    moves = None
    if any(event.kind == POLICY for event in events):
        moves = "it is a policy gradient"
    elif is_loose:
        moves = "the optimized tensors belong to no module, and may be meant to raise the loss"
    elif _has_moving_targets(facts, chance):
        moves = "the targets seem to come from the model itself, or from a copy of it"
    learns = None if is_adversarial else _learns(courses, chance, accuracy, guessed, rows)
    if len(courses) > 1 and not is_adversarial:
        learns = _phases_learn(courses)
    if learns is False and main is not None and is_on_its_way(main, courses[0]):
        learns = None
    if learns is False and len(courses) == 1:
        (course,) = courses
        is_free = may_wander(facts) or moves is not None
        is_too_soon = course.n < _PATIENCE and not course.has_risen
        learns = None if (is_too_soon or is_free) and not course.has_broken else False
    point = _of_one_point(facts) if len(courses) == 1 else None
    if point is not None:
        learns = _beyond_one_point(courses[0], point, learns)
    if learns is None and not is_adversarial and doubt(facts) is None and proof(facts) is not None:
        learns = True  # whatever the noise of the loss
    return CourseOfTraining(courses, chance, accuracy, guessed, is_adversarial, moves, learns, point)


def _of_one_point(facts: TrainingFacts) -> float | None:
    """Return what a loss comes to if all outputs are the same point: the margin, or the logarithm of the batch."""
    known = [one for one in facts.models if one.of_one_point]
    steps = max((one.ended + 1 for one in facts.optimizers), default=0)
    if len(known) != 1 or facts.backwards > _ACCUMULATED * steps:
        return None
    least, middle, most = known[0].of_one_point
    return middle if most - least <= _CONSTANT * abs(middle) else None


def _beyond_one_point(course: LossCourse, point: float, learns: bool | None) -> bool | None:
    """Return the verdict: a fall to the loss of one point proves nothing; a margin may be kept from the start."""
    has_no_margin = point <= course.least or 0 <= point < _NO_MARGIN * course.start
    if learns and (has_no_margin or 0 < _ONE_POINT * point < course.end):
        return None
    return True if learns is False and 0 <= course.end < _LOW * point else learns


def _alternate(courses: Sequence[LossCourse], optimizers: Sequence[OptimizerFacts]) -> bool:
    """Tell whether optimizers with losses of their own step in turn, and not one after the other, in phases."""
    judged = {one.optimizer for one in courses}
    spans = sorted((one.began, one.ended) for one in optimizers if one.optimizer in judged)
    return len(courses) > 1 and (
        len(spans) < len(courses) or any(began <= ended for (_, ended), (began, _) in pairwise(spans))
    )


def _phases_learn(courses: Sequence[LossCourse]) -> bool | None:
    """Tell whether the loss of each phase falls; a later phase may begin with what an earlier one has learnt."""
    if any(one.has_broken or (one.has_risen and not one.has_been_negative) for one in courses):
        return False
    return True if all(one.has_fallen for one in courses) else None


def is_on_its_way(criterion: WatchedCriterion, course: LossCourse | None) -> bool:
    """Tell whether many labels a sample, most of them absent, are being learnt: how rare they are comes first."""
    is_sparse = (criterion.commonest_label or 0.0) > _IMBALANCED and any(
        one is not None for one in criterion.series.shared
    )
    return is_sparse and course is not None and course.is_falling


def may_wander(facts: TrainingFacts) -> bool:
    """Tell whether the loss may be a sampled energy: of tensors without a module and a known criterion."""
    is_bare = {one.model for one in facts.models} == {LOOSE}
    return is_bare and not any(one.is_training for one in facts.criteria)


def _has_moving_targets(facts: TrainingFacts, chance: float | None) -> bool:
    """Tell whether a model computes its own targets, so that its loss need not fall.
    Such as values of states, or how well boxes match: probabilities that grow, in a loss of several parts."""
    trained = [one for one in facts.criteria if one.is_training]
    for one in trained:
        guesses = [cost for cost in one.series.guessing if cost is not None]
        third = len(guesses) // 3
        if chance is None and one.classes == 2 and set(one.series.accuracy) == {None} and third:
            early, late = statistics.median(guesses[:third]), statistics.median(guesses[-third:])
            if late > _GROWN * early:
                return True
    # A queue of negatives fills up first, with outputs of a copy that differ less and less from the positives
    has_queue = any(
        has_positions(one) and (one.classes or 0) > _QUEUE * max(one.series.rows) for one in trained
    )
    has_classes = any(one.classes for one in trained)
    return has_queue or (not has_classes and any(one.makes_targets for one in facts.models))


def _learns(
    courses: Sequence[LossCourse],
    chance: float | None,
    accuracy: float | None,
    guessed: float | None,
    rows: int,
) -> bool | None:
    if len(courses) != 1:
        return None
    (course,) = courses
    if course.has_broken:
        return False
    if course.n < MIN_STEPS:
        return None
    if chance is None and course.has_been_negative:
        # It has no relative change: a reward, a likelihood. Labels predicted worse than by guessing contradict it.
        is_worse = accuracy is not None and guessed is not None and accuracy < guessed
        return True if course.has_fallen and not is_worse else None
    if course.has_risen and (chance is None or course.end > chance):
        return False
    if accuracy is not None and guessed is not None and rows:
        # The standard error of a share, with the labels' own spread for that of guessing.
        error = math.sqrt(max(guessed * (1 - guessed), accuracy * (1 - accuracy)) / rows)
        if accuracy - _SURE * error > guessed + _MARGIN:
            return True
        if accuracy + 2 * error < guessed + 2 * _MARGIN and guessed < 1 - 2 * _MARGIN:
            is_below = bool(chance and course.has_fallen and course.end + course.error < AT_CHANCE * chance)
            is_open = is_below or (
                course.is_falling and course.end > (chance or 0.0) and guessed > _IMBALANCED
            )
            is_low = course.end <= _LOW * (chance or 0.0)
            learnt = is_low and course.has_fallen and accuracy - _SURE * error > guessed
            return True if learnt else None if is_low or is_open else False
    if chance is not None and course.end > 0:
        if course.end < _LOW * chance:
            return True
        if course.end - course.error > chance:
            return None if course.is_falling and accuracy is None and course.end < _GROWN * chance else False
        if course.has_fallen and course.end + course.error < AT_CHANCE * chance:
            return True
        is_flat = course.n >= _LONG and abs(course.middle - course.end) < 2 * course.error
        return False if course.has_fallen is False or is_flat else None
    return course.has_fallen


def course_of(series: ScalarSeries, rates: Sequence[ScalarSeries]) -> LossCourse | None:
    """Return the course of a loss, from where the learning rate is warmed up; None if it was never recorded."""
    if not series.step:
        return None
    has_broken = all(value is None or not math.isfinite(value) for value in series.value[-2:])
    warm = _warm_up(series, rates)
    pairs = [(step, value) for step, value in series.finite if step >= warm]
    values = [value for _, value in pairs]
    if not values:
        nan = math.nan  # never finite
        return LossCourse(series.optimizer, nan, nan, nan, nan, nan, nan, nan, nan, 0, True, False)
    first, last = max(min(len(values) // 10, _MOST_WINDOW), 3), max(min(len(values) // 4, _MOST_WINDOW), 3)
    # Of the last quarter of the steps: later ones are recorded more rarely
    late = sum(step > (pairs[0][0] + 3 * pairs[-1][0]) / 4 for step, _ in pairs)
    last = min(last, max(late, _FEW_LATE))
    noise = noise_deviation(values)
    early = statistics.fmean(values[:first])
    starts = range(0, max(len(values) - last, 0) + 1, max(last // 2, 1))
    return LossCourse(
        optimizer=series.optimizer,
        first=values[0],
        lowest_end=min(values[-last:]),
        # The very first value counts: a loss that rises at once and falls afterwards has not fallen.
        early=early,
        start=min(early, values[0] + 2 * noise),
        end=statistics.fmean(values[-last:]),
        middle=statistics.fmean(values[max(len(values) // 2 - last, 0) : len(values) // 2] or values),
        least=min(statistics.fmean(values[at : at + last]) for at in starts),
        error=_CORRELATED * noise * math.sqrt(1 / min(first, len(values)) + 1 / min(last, len(values))),
        n=pairs[-1][0] - pairs[0][0] + 1 if len(values) >= MIN_STEPS else len(values),
        has_broken=has_broken,
        has_been_negative=min(values) < 0,
    )


def noise_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise, from the median difference of neighbours."""
    steps = [abs(after - value) for value, after in pairwise(values)]
    return 1.4826 * statistics.median(steps) / math.sqrt(2) if steps else 0.0


def _warm_up(series: ScalarSeries, rates: Sequence[ScalarSeries]) -> int:
    """Return the first step whose learning rate is near the highest, at most a third of the run."""
    own = [one for one in rates if one.optimizer == series.optimizer and one.group == 0]
    rate_at = [(step, rate or 0.0) for one in own for step, rate in zip(one.step, one.value, strict=True)]
    peak = max((rate for _, rate in rate_at if rate > 0), default=math.inf)  # a rate may be NaN
    first = next((step for step, rate in rate_at if rate >= _WARM * peak), 0)
    return first if first < series.step[-1] / 3 else 0


def doubt(facts: TrainingFacts) -> str | None:
    """Return how the last evaluations are no better than guessing; None where they are, or none was seen.

    An accuracy is at chance if guessing reaches it with a probability above 1 %; a loss of numbers, if it has
    risen above that of the best constant.
    """
    doubts = []
    known = max((accuracy_of(one)[0] or 0.0 for one in facts.criteria if one.is_training), default=0.0)
    for one in facts.criteria:
        if one.is_training or has_positions(one):
            continue
        first, cost = (one.series.value or (None,))[0], late_loss(one)
        if (one.is_weighted or not one.classes) and (first is None or cost is None or cost <= first):
            continue  # it may not be in the unit of guessing
        if not one.classes:
            guesses = [value for value in one.series.guessing if value is not None]
            if guesses and (cost or 0.0) > guesses[-1]:
                words = f"the loss in evaluation has risen from {first:.4g} to {cost:.4g}"
                doubts.append(f"{words}, and the best constant output gives {guesses[-1]:.4g}")
            continue
        if (found := beside_guessing(one)) is not None:
            accuracy, guessed, rows, luck = found
            if luck <= LUCKY and (accuracy >= (1 + guessed) / 2 or not costs_more_than_guessing(one)):
                continue  # it has learnt, however sure it is where it is wrong
            if guessed < _IMBALANCED and not one.is_weighted:
                is_apart = known > max(accuracy, guessed) + _MARGIN
                words = f"accuracy {100 * known:.1f} % in training, as if it memorises, but " * is_apart
                words += f"the accuracy in evaluation is {100 * accuracy:.1f} % on {rows:,} labels: chance "
                n = f"{100 * luck:.0f}" if luck > LUCKY else "at most 1"
                often = f", and guessing is at least as good in {n} of 100 such evaluations"
                doubts.append(f"{words}is {100 * guessed:.1f} %{often if luck < 1 else ''}")
        if costs_more_than_guessing(one):
            guess = math.log(one.classes) if one.is_weighted else one.label_entropy
            doubts.append(f"the loss in evaluation is {cost:.4g}, above chance level, {guess:.4g}")
    return "; ".join(dict.fromkeys(doubts)) or None


def proof(facts: TrainingFacts) -> str | None:
    """Return how the last evaluation is better than guessing; None where it is not, or none was seen."""
    for one in facts.criteria:
        if not one.is_training and not has_positions(one) and (found := beside_guessing(one)) is not None:
            accuracy, guessed, rows, luck = found
            if luck <= LUCKY:
                often = f"{1000 * luck:.0f}" if luck >= 0.0005 else "fewer than 1"
                words = f"the accuracy in evaluation is {100 * accuracy:.1f} % on {rows:,} labels, which"
                words += f" guessing ({100 * guessed:.1f} %) reaches in {often} of 1,000 such evaluations"
                how = "learnt" if accuracy >= (1 + guessed) / 2 else "learning"
                above = costs_more_than_guessing(one)
                return f"{words}, but the loss there is above chance level" if above else f"{how}: {words}"
    return None


def costs_more_than_guessing(one: WatchedCriterion, times: float = 1.0) -> bool:
    """Tell whether the late loss of classes is above `times` that of guessing by the shares of the labels."""
    is_of_many = one.name.startswith("binary") and (one.is_summed or one.is_weighted)  # not that of one label
    cost = None if is_of_many else late_loss(one)
    # Equal probabilities cost the same whatever the weights of the classes.
    guess = math.log(one.classes or 1) if one.is_weighted else one.label_entropy
    return bool(guess and cost is not None and cost > times * guess)


def beside_guessing(one: WatchedCriterion) -> tuple[float, float, int, float] | None:
    """Return the last accuracy, that of guessing, the number of labels, and how likely guessing is as good."""
    accuracy, guessed, rows = accuracy_of(one)
    if accuracy is None or guessed is None:
        return None
    return accuracy, guessed, rows, luck_of(round(accuracy * rows), rows, guessed)


def labels_seen(facts: TrainingFacts, n: int) -> float:
    """Return about how many rows a criterion was given in `n` steps; infinite where none was seen."""
    rows = [one.series.rows for one in facts.criteria if one.is_training and one.series.rows]
    return max((n * statistics.fmean(one) for one in rows), default=math.inf)


def _n_late(criterion: WatchedCriterion) -> int:
    """Return the number of last records that count: a third in training, else an evaluation or a few small ones."""
    rows = criterion.series.rows
    if criterion.is_training:
        return max(len(rows) // 3, min(len(rows), 5))
    return next((n for n, k in enumerate(accumulate(reversed(rows)), 1) if k >= _EVALUATED), len(rows))


def late_loss(criterion: WatchedCriterion) -> float | None:
    """Return the mean over the rows of the last records; see `accuracy_of`."""
    series, n = criterion.series, _n_late(criterion)
    late = [one for one in zip(series.value[-n:], series.rows[-n:], strict=True) if one[0] is not None]
    total = sum(k for _, k in late)
    return sum((value or 0.0) * k for value, k in late) / total if total else None


def accuracy_of(criterion: WatchedCriterion) -> tuple[float | None, float | None, int]:
    """Return accuracy, that of guessing and rows: of the last third of a training, or of the last evaluation.

    Evaluations that follow each other mostly see the same samples: only small ones are taken together. None where
    the last outputs are NaN.
    """
    series, n = criterion.series, _n_late(criterion)
    if None in series.accuracy[-1:]:
        return None, None, 0
    rows = [
        (right * k, most * k, k)
        for right, most, k in zip(
            series.accuracy[-n:], series.commonest_label[-n:], series.rows[-n:], strict=True
        )
        if right is not None and most is not None
    ]
    total = sum(k for *_, k in rows)
    if not total:
        return None, None, 0
    by_label = 0.0 if has_positions(criterion) else criterion.commonest_label or 0.0
    return sum(right for right, *_ in rows) / total, max(by_label, 1 / (criterion.classes or 1)), total
