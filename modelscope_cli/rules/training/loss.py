"""Rules about the loss as a whole."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import percent, rounded
from modelscope_cli.records.run import Share, luck_of
from modelscope_cli.records.training_facts import LOSS, PARAMETER, UNSEEN
from modelscope_cli.records.watch import COLLAPSED, MADE_AGAIN, UNRELATED, WatchedCriterion
from modelscope_cli.rules.training import progress
from modelscope_cli.rules.training.layers import is_silent
from modelscope_cli.rules.training.progress import FEW_LABELS, MIN_STEPS, LossCourse, labels_seen
from modelscope_cli.rules.training.rule_types import Case, Link, TrainingSighting, known, training_rule
from modelscope_cli.rules.training.updates import SMALL, small_updates
from modelscope_cli.rules.training.wiring import logits_not_logarithms

_ENOUGH = 50  # steps after which a loss that has not fallen is a finding
_DIVERGED = 2  # times the least loss over a quarter of the run
_MOVING = 500  # times that: the loss grows with targets that the model computes itself
_ENOUGH_ROWS, _ENOUGH_OTHERS = 200, 5  # predictions; labels of other than the commonest class
_IMBALANCED, _LAZY = 0.8, 0.9  # shares of the commonest label, and of the commonest prediction
_BETTER = 0.1  # of the errors of guessing
_HALFWAY = 0.5  # of the way from guessing to perfect accuracy
_SETTLED, _NEARLY_RIGHT = 200, 0.95  # steps, until which averages of batch norm lag behind; accuracy
_KNOWN, _FEW_OTHERS, _CLEARLY = 0.9, 100, 1.5  # accuracy; labels in an evaluation; times the cost of guessing
_RECORDS = 5  # in a third of the run
_ALIKE = _GROWS = 4.0  # times
_VANISHED, _NOTHING, _NEAR = 0.05, 1e-4, 0.05  # of the loss at first; of both; of the loss for one point
_NEARLY_ALIKE = -0.9  # of a loss that is minus a cosine
_OF_ANGLES = 8.0  # the largest loss that may be a few cosines
_ONCE = "make the model and its optimizer once, before the loop over the epochs"
_RATE = "check lr, and whatever changes it"
_IN_HALVES = (
    "use bfloat16, or torch.amp.GradScaler: float16 has no values above 65504; and look for log or a division"
)
_FAR = 10.0  # times the spread of the targets, or the size of the outputs
_DISTANCES = {"mse_loss": 0.5, "l1_loss": 1.0, "smooth_l1_loss": 1.0, "huber_loss": 1.0}
_PACE, _EXACTLY = 1e-5, 1e-3  # of the distance, in a step; of a number of outputs
STANDARDISE = "scale the targets to mean 0 and standard deviation 1, or start the last bias at their mean"
_ENOUGH_NUMBERS = 20  # targets in an evaluation
_BY_DESIGN = 1e-4  # probability of so many wrong labels by chance
_COLLAPSED = 0.995  # share of the predictions that are of one class


def _whose(case: Case, label: str) -> str:
    """Return ` of Adam (Generator)` if there are several losses, else an empty string."""
    if len(case.course.loss) < 2:
        return ""
    models = dict.fromkeys(one.model for one in case.course.parameters if one.optimizer == label)
    return f" of {label} ({', '.join(models)})" if models else f" of {label}"


def _place(case: Case) -> str | None:
    """Return the line that computes the loss, if there is only one."""
    places = {one.place for one in case.facts.criteria if one.is_training}
    return places.pop() if len(places) == 1 else None


@training_rule("MS701", "loss-not-finite", ERROR, 0, Link.LAYERS)
def loss_not_finite(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The loss becomes NaN or infinite.

    Measure: losses that are not finite
    Source: IEEE 754: NaN passes through every sum, and into every weight
    Hint: look for exp, log, sqrt or a division in the loss; if it is finite at first, lower the learning rate, or
        clip the gradients
    Why: from then on all weights are NaN, and the rest of the run is wasted
    """
    is_half = any("float16" in one.dtypes for one in case.facts.models)
    found: list[tuple[int, str, str | None]] = []
    for series in case.course.loss:
        values = [math.nan if value is None else value for value in series.value]
        at = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
        if at is not None:
            when = "at" if any(map(math.isfinite, values[at:])) else "from"
            words = f"the loss{_whose(case, series.optimizer)} is {values[at]} {when} step {series.step[at]}"
            words += " on" if when == "from" else ""
            found.append((series.step[at], words, _IN_HALVES if is_half else None))
    found += [(one.step or 0, one.message, None) for one in case.course.events if one.kind == "loss"]
    rates = [pair for one in case.course.lr for pair in zip(one.step, one.value, strict=True)]
    lost = min((at for at, rate in rates if not math.isfinite(rate or 0.0)), default=math.inf)
    for step, words, hint in found[:1]:
        rate = f"; the learning rate is not finite at step {lost}" if lost <= step else ""
        message, link = words + rate + _origin(case, step), case.link_of_break(LOSS, UNSEEN)
        # A score in place of a logarithm is the cause
        is_explained = any(logits_not_logarithms.judge(case, logits_not_logarithms.threshold))
        link = Link.LAYERS if is_explained else link
        cure = _RATE if rate else hint
        yield TrainingSighting(None, step, None, message, _place(case), link=link, hint=cure)


def _origin(case: Case, step: int) -> str:
    """Describe the value that was not finite before the loss of a step."""
    birth = next((birth for birth in case.course.births if step - 1 <= birth.step <= step), None)
    if birth is None:
        return ""
    if birth.what == LOSS:
        return "; it arises in the loss computation: the output of every layer was finite in that step"
    since = f" at step {birth.step}" if birth.step != step and birth.what != PARAMETER else ""
    return f"; the first cause: {birth.words}{since}"


_RAISED, _RISEN = 4.0, 5.0  # times the first learning rate; the first loss


@training_rule("MS704", "loss-diverges", ERROR, _DIVERGED, Link.LOSS)
def diverging(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The loss has risen far above its lowest level.

    Measure: loss relative to the lowest that lasted for a quarter of the run, where it also ends above its start
    Source: our choice: twice the lowest level that the loss kept for a quarter of the run
    Hint: lower the learning rate, warm it up, or clip the gradients (clip_grad_norm_)
    Why: the model gets worse: it loses what it has learnt
    """
    if case.progress.is_adversarial or case.progress.learns is True or progress.may_wander(case.facts):
        return
    threshold *= _MOVING if case.progress.moves else 1
    for course in case.progress.losses:
        if course.n < MIN_STEPS or not math.isfinite(course.end):
            continue
        rise = course.end - course.least
        scale = max(abs(course.least), 1e-3)
        if rise / scale > threshold - 1 and rise > 3 * course.error and course.end > course.start:
            factor = course.end / course.start if course.start > 0 else math.inf
            words = f"the mean loss{_whose(case, course.optimizer)} was {course.began()} and {course.least:.3g} at"
            words += f" best, and is {course.end:.3g} over the last"
            since = _since(case, course, threshold * scale)
            hint = _raised_rate(case, course.optimizer)
            yield TrainingSighting(None, since, factor, words, _place(case), hint=hint)


def _raised_rate(case: Case, optimizer: str) -> str | None:
    """Return what to do where a scheduler has raised the learning rate to several times its first value."""
    for series in case.course.lr:
        rates = [rate for rate in known(series.value) if rate]
        if series.optimizer == optimizer and rates and rates[-1] > _RAISED * rates[0]:
            return f"keep the learning rate near {rates[0]:.2g}: the loss rose as the rate grew to {rates[-1]:.2g}"
    return None


def _since(case: Case, course: LossCourse, limit: float) -> int:
    """Return the step from which on the loss was above a limit, apart from single steps."""
    for series in case.course.loss:
        if series.optimizer == course.optimizer:
            pairs = series.finite
            lowest = min(range(len(pairs)), key=lambda i: pairs[i][1])
            return next((step for step, value in pairs[lowest:] if value > limit), pairs[lowest][0])
    return 0


@training_rule("MS733", "overflow-without-a-scaler", ERROR, 0, Link.BOOKKEEPING)
def overflow(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Gradients overflow in float16, and no gradient scaler skips these steps.

    Measure: gradients that are not finite
    Source: IEEE 754 binary16: the largest value is 65504
    Hint: use torch.amp.GradScaler, or bfloat16, which needs none
    Why: one such step makes the weights NaN permanently
    """
    halves = [one for one in case.facts.models if "float16" in one.dtypes]
    has_scaler = any(one.scaled for one in case.facts.optimizers)  # MS745
    if not halves or has_scaler or any(event.kind == "skipped" for event in case.course.events):
        return
    steps = [birth.step for birth in case.course.births]
    steps += [
        step
        for one in case.course.parameters
        for step, norm in zip(one.series.step, one.series.grad_norm, strict=True)
        if norm is not None and not math.isfinite(norm)
    ]
    if steps:
        words = f"{halves[0].model} computes in float16, where values above 65504 are infinite"
        yield TrainingSighting(None, min(steps), None, words, halves[0].called)


@training_rule("MS735", "loss-has-not-fallen", ERROR, _ENOUGH, Link.LOSS)
def not_fallen(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The loss has not fallen, or not enough to be better than chance.

    Measure: steps with a known loss
    Source: our choice: 50; a fall is compared with the noise of the loss, and accuracy with chance
    Hint: look at a few images with their labels; overfit one batch; try the learning rate that lrfind suggests
    Why: this run does not learn, whatever the cause
    """
    course, far = case.progress.main, far_targets(case)
    if far is not None and far[2]:
        yield TrainingSighting(None, 0, far[1], far[0], _place(case), None, Link.INITIALISATION, STANDARDISE)
        return
    if case.progress.learns is not False or course is None or course.n < threshold or course.has_broken:
        return
    if any(diverging.judge(case, _DIVERGED)):
        return
    chance = case.progress.chance
    start, end = course.began(), f"{course.end:.3g} over the last"
    is_lower = course.end < (course.first if course.has_risen_at_once else course.early)
    beyond = " beyond its noise" if is_lower and course.has_fallen is None else ""
    words = f"the loss has not fallen{beyond}: its mean is {start} and {end}"
    if course.has_fallen is not None and is_lower:
        words = f"the loss is no better than chance: its mean is {start} and {end}"
    if chance is not None and course.end > 0.85 * chance:
        words += f"; chance level is {chance:.3g}"
    words += case.progress.right
    again = next((event.message for event in case.course.events if event.kind == MADE_AGAIN), None)
    words, hint = (f"{words}; {again}", _ONCE) if again else (words, None)
    yield TrainingSighting(None, None, course.end, words, _place(case), hint=hint)


def far_targets(case: Case) -> tuple[str, float, bool] | None:
    """Return in words how far targets are from the outputs, by what factor, and whether the training fails."""
    main = case.progress.main
    if main is None or case.progress.learns or len(case.course.loss) != 1:
        return None
    fails = case.fails and labels_seen(case.facts, case.course.steps) >= FEW_LABELS
    if (spread := _far_for_their_spread(case, main)) is not None:
        return *spread, fails
    distances = list(_distances(case))
    if len(distances) < (1 if main.has_broken else _RECORDS):
        return None
    (first, early), (last, late) = distances[0], distances[-1]
    far = first / max(early, 1.0)
    words = f"the targets are about {first:.2g} in size, and the first outputs {early:.2g}"
    if main.has_broken:
        has_risen = max(value for _, value in case.course.loss[0].finite) > _RISEN * main.first
        return (words, far, True) if far > _FAR**2 and has_risen else None
    is_stuck = far > _FAR**3 and main.n >= MIN_STEPS and abs(late - early) < _PACE * first * main.n
    words += f"; after {case.course.steps:,} steps they are {late:.2g}"
    return (words, far, fails or is_stuck) if far > _FAR and late < _HALFWAY * last else None


def _far_for_their_spread(case: Case, course: LossCourse) -> tuple[str, float] | None:
    """Return that the targets are much further from the first outputs than from each other, and never reached."""
    compared = [one for one in case.facts.criteria if one.is_training and one.name in _DISTANCES]
    sizes = [(*known(one.series.mean)[:1], *known(one.series.std)[:1]) for one in case.course.layers[-1:]]
    if len(compared) != 1 or not case.progress.chance or not any(sizes) or course.has_broken:
        return None
    (one,) = compared
    first, guess = (next(iter(known(row)), 0.0) for row in (one.series.value, one.series.guessing))
    power = _DISTANCES[one.name]
    away = (first / guess) ** power if guess else 0.0
    if away < _FAR or math.hypot(*sizes[0]) > max(_BETTER * first**power, 1.0):
        return None
    words = f"the targets are {away:.0f} times as far from the first outputs as from their own mean"
    return (
        f"{words}; the loss ends at {course.end:.3g} (best constant output: {case.progress.chance:.3g})",
        away,
    )


def _distances(case: Case) -> Iterator[tuple[float, float]]:
    """Yield, by step, how far the targets are from the last outputs, and the size of those; nothing if unknown.

    The gradient of a mean over n outputs has the norm 2 sqrt(loss / n) for squares, and 1 / sqrt(n) for absolute
    values, or for the root of the mean square; n is a multiple of the batch.
    """
    losses = dict(case.course.loss[0].finite)
    batches = {n for one in case.facts.inputs for n in one.series.batch if n}
    for series in [layer.series for layer in case.course.layers[-1:]]:
        for step, mean, std, norm in zip(series.step, series.mean, series.std, series.grad_norm, strict=True):
            if step not in losses or not norm or not math.isfinite(norm):
                continue
            for n, power in ((4 * losses[step] / norm**2, 0.5), (1 / norm**2, 1.0)):
                if any(abs(n / batch - max(round(n / batch), 1)) < _EXACTLY for batch in batches):
                    yield losses[step] ** power, math.hypot(mean or 0.0, std or 0.0)


@training_rule("MS736", "one-class-predicted", WARNING, _COLLAPSED, Link.STANDSTILL)
def collapsed(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Nearly all predictions are the same class, although the labels are of several classes.

    Measure: share of predictions that are the most frequent class, in every step from some point on
    Source: our choice: 995 of 1,000
    Hint: weight the classes in the loss, or sample them evenly; check that the labels belong to the images
    Why: the model never predicts the rare classes, although its accuracy looks high
    """
    if case.progress.is_adversarial or any(one.is_loose for one in case.facts.optimizers):
        return  # a generator or an attack makes the predictions wrong
    for one in case.facts.criteria:
        series = one.series
        n = max(len(series.step) // 3, 3)
        is_short = case.course.steps < _ENOUGH or len(series.step) < 8
        if not one.is_training or (one.classes or 0) < 2 or is_short:
            continue
        guesses = [share for share in series.commonest_prediction[-n:] if share is not None]
        labels = [share for share in series.commonest_label[-n:] if share is not None]
        right, _, rows = progress.accuracy_of(one)
        if not guesses or rows < _ENOUGH_ROWS or right is None:
            continue
        most, guessed = sum(labels) / len(labels), sum(guesses) / len(guesses)
        n_others = (1 - most) * rows  # labels of the other classes
        is_no_better = right < most + _BETTER * (1 - most) + 1 / rows**0.5
        if most > _IMBALANCED and (
            case.progress.learns is True or progress.is_on_its_way(one, case.progress.main)
        ):
            continue  # as in detection, with mostly background
        is_lazy = most > _IMBALANCED and guessed > _LAZY and case.progress.learns is not True
        if is_no_better and (guessed > threshold or is_lazy) and n_others >= _ENOUGH_OTHERS:
            words = f"{percent(guessed, 1)} of the predictions are the same class,"
            words += f" but only {percent(most, 1)} of the labels of a batch are"
            hint = "check the class weights" if one.is_weighted else None
            yield TrainingSighting(None, series.step[-n], max(guesses), words, one.place, hint=hint)
            return


@training_rule("MS742", "validation-is-guessing", WARNING, 0.05, Link.LOSS)
def validation_guesses(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The model does well in training, but no better than chance in validation: it memorises.

    Measure: binomial probability that a model halfway between chance and perfect has an accuracy this low in the
        last evaluation; in regression, the loss there compared with that of the best constant output
    Source: the usual 5 %; our choice: at most a tenth better than chance, or no better with that probability;
        with few labels, 1.5x the chance-level loss
    Hint: check the labels, and use more images; in a script of your own, compare the preprocessing and the class
        indices of both sets, and check which copy of the model is validated
    Why: the model does not work on images it was not trained on
    """
    accuracy, guessed = case.progress.accuracy, case.progress.guessed
    trained = {(one.name, one.classes) for one in case.facts.criteria if one.is_training}
    judged = [
        one for one in case.facts.criteria if not one.is_training and (one.name, one.classes) in trained
    ]
    if case.progress.learns is not True or _has_follower(case):
        return
    if accuracy is None or guessed is None:
        yield from _constant_is_better(case, judged)
        return
    is_costly = all(map(progress.costs_more_than_guessing, judged))
    has_averages = any(row.type.startswith("BatchNorm") for row in case.course.layers)
    known = _KNOWN if is_costly and not has_averages else _NEARLY_RIGHT
    if accuracy < guessed + _HALFWAY * (1 - guessed) or (case.course.steps < _SETTLED and accuracy < known):
        return
    figures = [one for each in judged if (one := progress.beside_guessing(each)) is not None]
    bound = accuracy * all(progress.costs_more_than_guessing(one, _CLEARLY) for one in judged)
    if len(figures) == len(judged) > 0 and all(_is_at_chance(*one, threshold, bound) for one in figures):
        right, least, rows, _ = figures[0]
        share = Share.of(round(right * rows), rows)
        often = f", 95 % interval {percent(share.low, 1)} to {percent(share.high, 1)}" * (rows < _FEW_OTHERS)
        chance = f"chance {percent(least, 1)}{often}){', with a loss above chance level' * is_costly}"
        judged_on = f"{percent(right, 1)} of {rows:,} labels in evaluation ({chance}"
        words, hint = f"accuracy {percent(accuracy, 1)} in training, but {judged_on}", None
        # Labels that have nothing to do with the true ones are rarely all wrong
        if luck_of(round((1 - right) * rows), rows, 1 - 1 / max(judged[0].classes or 2, 2)) < _BY_DESIGN:
            words, hint = f"far below chance: {words}", "give both sets the same class indices"
        else:
            words = f"memorised, not learnt: {words}"
        yield TrainingSighting(None, judged[0].series.step[0], right, words, judged[0].place, hint=hint)


def _is_at_chance(right: float, least: float, rows: int, luck: float, most: float, trained: float) -> bool:
    """Tell whether an accuracy is that of guessing, `least`: on few labels, if it is below `trained`."""
    if luck <= most and right >= least + _BETTER * (1 - least):
        return False
    is_below = right < least + _HALFWAY * (1 - least) and Share.of(round(right * rows), rows).high < trained
    return is_below or luck_of(round((1 - right) * rows), rows, _HALFWAY * (1 - least)) < most


def _constant_is_better(case: Case, judged: Sequence[WatchedCriterion]) -> Iterator[TrainingSighting]:
    """Yield an evaluation of numbers that a constant would be better at, unlike the training."""
    main, chance = case.progress.main, case.progress.chance
    one = judged[0] if len(judged) == 1 else None
    cost = progress.late_loss(one) if one is not None else None
    if one is None or cost is None or main is None or chance is None or main.end > _HALFWAY * chance:
        return
    guesses = [value for value in one.series.guessing if value is not None]
    if guesses and one.series.rows[-1] >= _ENOUGH_NUMBERS and cost > (1 - _BETTER) * guesses[-1]:
        judged_on = f"{cost:.3g} in evaluation, where the best constant output gives {guesses[-1]:.3g}"
        words = f"memorised, not learnt: the loss is {main.end:.3g} in training, but {judged_on}"
        hint = "check the targets and their order, use more images, and preprocess both sets in the same way"
        yield TrainingSighting(None, one.series.step[0], cost, words, one.place, hint=hint)


def _has_follower(case: Case) -> bool:
    """Tell whether a model changes without an optimizer, such as an average, which lags behind at first."""
    unheld = [one.facts for one in case.course.parameters if not one.optimizer]
    return any(facts is not None and facts.has_changed for facts in unheld)


@training_rule("MS756", "predictions-unrelated-to-targets", WARNING, 0.005, Link.LAYERS)
def unrelated(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The prediction for a sample is uncorrelated with its target.

    Or, for any loss: it is no higher for the predictions of other samples.

    Measure: covariance of predictions and targets over a batch, divided by the variance of the targets, in the last
        third of the records; or the mean increase of the loss, in standard errors, when the output rows are
        permuted
    Source: derived: 0 if the predictions are constant or belong to other samples; our measurement: 0.004 in a
        healthy autoencoder before it begins to learn
    Hint: check that inputs and targets belong to the same samples; in an autoencoder, lower the weight of the KL
        term, and look for a detach before the decoder
    Why: the model has at best learnt the mean of the targets
    """
    collapses = embeddings_collapse.judge(case, embeddings_collapse.threshold)
    if any(small_updates.judge(case, SMALL)) or any(collapses):
        return  # the weights do not change, or the outputs do not differ, which another rule reports
    for one in case.facts.criteria:
        shares = [value for value in one.series.shared if value is not None and math.isfinite(value)]
        third = len(shares) // 3
        if not one.is_training or third < _RECORDS or case.course.steps < 3 * _ENOUGH:
            continue
        if progress.is_on_its_way(one, case.progress.main):
            continue
        highest = [
            statistics.fmean(part) + 2 * statistics.stdev(part) / math.sqrt(third)
            for part in (shares[third : 2 * third], shares[-third:])
        ]
        if highest[1] < threshold and highest[0] < _GROWS * threshold:
            share = statistics.fmean(shares[-third:])
            words = (
                f"predictions and targets of {one.name} are uncorrelated: over the samples of a batch their"
            )
            words += f" covariance is {share:.2g} times the variance of the targets, and it does not grow"
            yield TrainingSighting(None, one.series.step[third], share, words, one.place)
            return
    yield from _exchangeable(case)


def _exchangeable(case: Case) -> Iterator[TrainingSighting]:
    """A loss that is no higher for the predictions of other samples."""
    if case.course.steps < 3 * _ENOUGH or case.progress.is_adversarial:
        return
    is_free = progress.may_wander(case.facts) or case.progress.moves
    if not (is_free or (case.progress.learns and case.progress.is_measured)):
        far = far_targets(case)
        for one in case.told(UNRELATED):
            yield replace(one, message=f"{one.message}: {far[0]}", hint=STANDARDISE) if far else one


def _has_labels(one: WatchedCriterion) -> bool:
    """Tell whether the targets of a criterion are data, not the output of a model, such as for another view."""
    if one.name == "cross_entropy":
        return False  # its labels may be the positions of the positives
    is_given = one.classes is None and one.name != "ctc_loss"
    return not is_given or any(map(math.isfinite, known(one.series.target_variance)))


@training_rule("MS757", "embeddings-collapse", WARNING, 0.2, Link.INITIALISATION)
def embeddings_collapse(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The loss falls because the model maps all samples to one point.

    Also the posterior of a variational autoencoder, if it equals the prior for every sample.

    Measure: standard deviation of outputs over a batch, or spread of their directions, relative to the first
        records, if the loss falls with its square, or ends at the loss of equal outputs; or KL divergence from the
        prior, below 0.01 nats in most later steps
    Source: Jing et al. 2022, Understanding Dimensional Collapse; Bowman et al. 2016, Generating Sentences from a
        Continuous Space; our choice: a fifth
    Hint: push samples apart: negative pairs, a margin, a stopped gradient with a predictor, or a variance term; in
        a variational autoencoder, lower the weight of the KL term, or raise it slowly
    Why: the output no longer distinguishes the samples
    """
    main, is_at_point = case.progress.main, _is_at_one_point(case)
    if case.course.steps >= 3 * _ENOUGH:
        link = Link.STANDSTILL if is_silent(case) else None
        yield from (replace(one, link=link) for one in case.told(COLLAPSED))
    judged = [one for one in case.facts.criteria if one.is_training and _has_labels(one) and not is_at_point]
    if case.progress.is_adversarial or main is None or case.course.steps < _ENOUGH or judged:
        return
    # A maximised cosine ends at a loss of -1.
    floor = -1.0 if main.has_been_negative and -1.001 < main.end < _NEARLY_ALIKE else 0.0
    is_free = (main.has_been_negative and not floor) or main.start <= floor
    for one in case.facts.models:
        n, n_alike, *ends = one.outputs
        if n < 2 * _RECORDS or n_alike == n or (is_free and not is_at_point):
            continue
        for spread, at in (("standard deviation", 0), ("spread of directions", 2)):
            first, last = ends[at : at + 2]
            if not last < threshold * first or (at and main.start > _OF_ANGLES and not is_at_point):
                continue
            loss_left = (main.end - floor) / max(main.start - floor, _NOTHING)
            # Squared distances, and one minus the cosine, shrink as the square of the spread.
            is_square = loss_left < _ALIKE * (last / first) ** 2 < _ALIKE**2 * loss_left
            is_gone = loss_left < _VANISHED and (is_square or max(loss_left, last / first) < _NOTHING)
            if is_gone or is_at_point:
                words = (
                    f"the output of {one.model} is nearly the same point for all samples of a batch: its {spread} "
                    f"over the samples has fallen from {rounded(first)} to {last:.2g}, and the loss from "
                    f"{rounded(main.start)} to {rounded(main.end)}"
                )
                words += f"; {case.progress.of_one_point:.3g} if all were equal" if is_at_point else ""
                link = Link.LAYERS if is_at_point else None  # where else the samples would be told apart
                yield TrainingSighting(None, None, last / first, words, one.called, link=link)
                break


def _is_at_one_point(case: Case) -> bool:
    """Tell whether the loss ends, and stays, where it would be if all samples had the same output."""
    main, point = case.progress.main, case.progress.of_one_point
    if main is None or not point or case.course.steps < 3 * _ENOUGH:
        return False
    if point < 0:  # a maximised similarity
        return main.end - point < _NEAR * (main.start - point)
    return main.lowest_end > (1 - _NEAR) * point and main.end < (1 + _NEAR) * point
