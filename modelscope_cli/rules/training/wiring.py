"""Rules about operations between the model and the loss."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from modelscope_cli.records import watch as events
from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import counted, rounded
from modelscope_cli.records.watch import WatchedCriterion
from modelscope_cli.rules.training import progress
from modelscope_cli.rules.training.guessing import beside_the_loss, has_positions, scale_of
from modelscope_cli.rules.training.layers import is_silent
from modelscope_cli.rules.training.progress import MIN_STEPS
from modelscope_cli.rules.training.rule_types import (
    Case,
    Link,
    TrainingSighting,
    known,
    training_rule,
    zeros_since,
)

_WITHIN = {"cross_entropy": "softmax", "binary_cross_entropy_with_logits": "sigmoid"}
_LOGARITHM = 1e-3  # above the logarithm of a probability to which a script adds a small constant
_NO_VARIANCE = 1e-12
_NEGATIVE = -1e-3  # below what rounding makes of a loss of 0
_NONE_LEFT = 0.05  # of both losses of adversaries, at first 2 log 2 and log 2
_ROUNDING = 1e-6  # of a spread
_NEARLY_NOTHING = 0.5  # of the cost of guessing between all classes
_WITHOUT_END = 20.0  # times its first value: a likelihood may be negative, but does not fall as far
_BELOW = 0.5  # of the accuracy by chance
_FAR_ABOVE = 1.5  # times the cost of guessing, and the first value
_MANY = 8  # rows of a batch, which have one class by chance at most once in 128 times; steps
_NEARLY_ALL = 0.9  # of the steps; of the labels
_SHUFFLE = "shuffle the training data: shuffle=True in its DataLoader"
_BOTH_LABELS = "criterion(D(real), ones) + criterion(D(fake.detach()), zeros)"
_WEIGHT = "use a weight above 0, which may grow slowly: loss = reconstruction + weight * divergence"
_LESS = 0.05  # times the criterion's mean over its rows
_LONG, _SMALL_SHARE, _AS_GUESSED = 150, 0.1, 0.97  # steps; of the loss; of the cost of guessing
_DIVERGENCE = "the first argument of F.kl_div must be log_softmax(student), the second softmax(teacher)"
_MASK = "mask the diagonal: scores.fill_diagonal_(float('-inf')) before the loss"
_TWO_VIEWS = "augment each image twice, with random numbers of its own each time"
_MORE = 1.5  # times the criterion's mean over its rows; a script may divide a sum by their number


def _losses(case: Case) -> list[WatchedCriterion]:
    return [one for one in case.facts.criteria if one.is_training and one.series.step]


@training_rule("MS720", "softmax-before-the-loss", ERROR, 3, Link.WIRING)
def applied_twice(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A loss that expects logits receives probabilities.

    Measure: recorded steps in which every row holds probabilities; or a softmax or sigmoid right before the loss
    Source: torch.nn.CrossEntropyLoss: the input is expected to contain the unnormalized logits
    Hint: remove the softmax or sigmoid before the loss; for nll_loss use log_softmax
    Why: a softmax of a softmax is nearly flat: gradients are small, and the loss cannot get near zero
    """
    for one in _losses(case):
        n = len(one.series.step)
        inner = _WITHIN.get(one.name)
        if n < threshold or not all(one.series.is_probability):
            continue
        if inner == "softmax" and (one.classes or 0) > 1:
            lowest = math.log(math.e + (one.classes or 1) - 1) - 1  # of softmax of probabilities
            words = f"{one.name} receives probabilities (they sum to 1), but applies softmax itself,"
            words += f" so the loss cannot fall below {lowest:.3g}"
        elif inner == "sigmoid" and one.made_by in ("sigmoid", "softmax"):
            words = f"{one.name} receives the output of {one.made_by}, but applies sigmoid itself"
        elif one.name == "nll_loss" and one.made_by != "log_softmax":
            words = "nll_loss receives probabilities, but expects log-probabilities"
        else:
            continue
        hint = "return logits: remove the sigmoid before the loss" if inner == "sigmoid" else None
        yield TrainingSighting(None, one.series.step[0], n, words, one.place, hint=hint)


@training_rule("MS738", "logits-in-nll-loss", ERROR, 3, Link.WIRING)
def logits_not_logarithms(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A criterion that expects log-probabilities receives scores, or probabilities over the wrong dimension.

    Measure: recorded steps; a log-probability is at most zero, so such a loss is never negative, and probabilities
        sum to 1 over the classes
    Source: torch.nn.NLLLoss: the input is expected to contain log-probabilities
    Hint: use cross_entropy, or log_softmax before nll_loss, over the class dimension: 1, or the last for ctc_loss
    Why: such a loss falls without limit while the predictions do not improve
    """
    for one in _losses(case):
        over = (one.made_by or "").partition(" over ")[2]
        are_positive = len(one.series.step) >= threshold and all(one.series.is_positive)
        if over or (one.name in ("kl_div", "ctc_loss") and are_positive):
            words = f"{one.name} receives probabilities, but expects log-probabilities, which are never above zero"
            if over:
                words = f"the probabilities that {one.name} receives sum to 1 over {over}, not the classes"
            hint = _DIVERGENCE if one.name == "kl_div" else None
            yield TrainingSighting(None, one.series.step[0], None, words, one.place, hint=hint)
            continue
        values = known(one.series.value)
        is_bare = one.name in ("nll_loss", "ctc_loss") and one.made_by != "log_softmax"
        is_bare &= not all(one.series.is_probability)
        if is_bare and len(values) >= threshold and min(values) < -_LOGARITHM:
            words = f"{one.name} is negative: it receives scores, but expects log-probabilities"
            yield TrainingSighting(None, one.series.step[0], min(values), words, one.place)


@training_rule("MS721", "activation-on-the-logits", WARNING, 3, Link.WIRING)
def squashed(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """An activation clips the output from which the loss is computed.

    Measure: recorded steps
    Source: certain: logits need both signs and any magnitude, but the activation limits them
    Hint: remove the activation after the last layer
    Why: the model cannot output the values that are clipped, and they pass no gradient
    """
    yield from (replace(one, step=0) for one in case.told(events.RANGE))
    for one in _losses(case):
        inner = _WITHIN.get(one.name)
        is_squashed = one.made_by in ("relu", "tanh", "sigmoid", "hardtanh") and one.made_by != inner
        if inner is None or not is_squashed or len(one.series.step) < threshold:
            continue
        lost = "nothing below zero" if one.made_by == "relu" else "nothing beyond 1"
        words = f"{one.name} receives the output of {one.made_by}, so its logits can be {lost}"
        yield TrainingSighting(None, one.series.step[0], len(one.series.step), words, one.place)


@training_rule("MS722", "loss-has-the-wrong-sign", ERROR, 3, Link.WIRING)
def wrong_sign(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The steps increase the criterion that they should decrease.

    A minimised negative criterion, alone or as a term, maximize=True, a score that is minimised, targets for which
    a criterion is negative, or a loss that falls without limit. The sign of a policy gradient is not looked at.

    Measure: recorded steps, all with a negative loss and a positive criterion; or a subtracted criterion that
        reaches 1.5 times its chance level
    Source: certain: the criterion rises as the loss falls
    Hint: flip the sign: look for a missing or extra minus, or maximize=True
    Why: the model gets worse with every step
    """
    if case.progress.is_adversarial:
        yield from () if any(_same_label(case)) else _colluding(case)
        return
    for one in _losses(case):
        pairs = beside_the_loss(one, case.course.loss)
        if len(pairs) < threshold or not _rises([value for value, _ in pairs]):
            continue
        below = _BELOW / (one.classes or 1)
        rise = f"which rises from {pairs[0][0]:.3g} to {pairs[-1][0]:.3g}"
        maximizer = next((each for each in case.facts.optimizers if each.maximizes), None)
        scale = scale_of(one, case.course.loss) or 0.0
        # One that is not part of the loss may rise as well
        (first, first_loss), (last, last_loss) = pairs[0], pairs[-1]
        is_minus = scale < 0 and last_loss - first_loss < 0.5 * scale * (last - first)
        if is_minus and all(value > 0 and loss < 0 for value, loss in pairs):
            words, place = f"the loss is minus {one.name}, {rise}", one.place
        elif maximizer is not None:
            words, place = f"{maximizer.optimizer} maximises the loss, {rise}", maximizer.made
        elif case.fails and (right := progress.accuracy_of(one)[0]) is not None and right < below:
            words, place = f"the loss falls, but not {one.name}, {rise}{case.progress.right}", one.place
        else:
            continue
        yield TrainingSighting(None, one.series.step[0], len(pairs), words, place)
        return
    told, places = list(case.told(events.WRONG_SIGN)), {one.place for one in _losses(case)}
    main, place = case.progress.main, places.pop() if len(places) == 1 else None
    if main is None or main.end >= -_WITHOUT_END * max(abs(main.first), abs(main.start), 1.0):
        yield from told
    elif told or main.n >= MIN_STEPS:
        words = f"the loss falls without bound, from {main.first:.3g} to {main.end:.3g}"
        words += f": {told[0].message}" if told else ""
        is_bare = not told and any(logits_not_logarithms.judge(case, threshold))
        link, line = Link.LOSS if is_bare else None, place or (told[0].place if told else None)
        yield TrainingSighting(None, 0, main.end, words, line, link=link)
    yield from _subtracted(case)
    yield from _below_zero(case)


def _below_zero(case: Case) -> Iterator[TrainingSighting]:
    """A binary cross-entropy that is negative, as only targets outside of 0 to 1 make it."""
    for one in _losses(case):
        low = min(filter(math.isfinite, known(one.series.value)), default=0.0)
        if one.name.startswith("binary_cross_entropy") and low < _NEGATIVE:
            words = f"{one.name} falls to {low:.3g}, but it is never negative for targets from 0 to 1"
            hint = "scale the targets to 0..1: divide masks of 0 and 255 by 255"
            yield TrainingSighting(None, one.series.step[0], low, words, one.place, hint=hint)


def _colluding(case: Case) -> Iterator[TrainingSighting]:
    """A generator and its discriminator, by cross-entropies of real and generated, of which both go to 0.

    By a hinge, that of the generator goes to the scores of generated samples, which are below -1.
    """
    courses, losses = case.progress.losses, _losses(case)
    fed = {one.model for one in case.facts.models if one.is_fed}
    owners = {one.optimizer: one.model for one in case.weights()}
    pair = sorted(courses, key=lambda one: owners.get(one.optimizer) in fed)
    names = [owners.get(one.optimizer, "") for one in pair]
    is_pair = [name in fed for name in names] == [False, True]
    over = [0 <= one.end < _NONE_LEFT * one.start and not one.has_been_negative for one in pair]
    are_over = all(over) or (over[0] and all(map(_is_least, losses)))
    is_hinge = not losses and over == [False, True] and pair[0].has_fallen is True and pair[0].end < -0.9
    are_over &= bool(losses) and all(one.name.startswith("binary_cross") for one in losses)
    if not is_pair or not (is_hinge or are_over):
        return
    named = zip(names, pair, strict=True)
    ends = ", ".join(f"{name} {one.start:.3g} to {one.end:.2g}" for name, one in named)
    least = "" if is_hinge else " to 0" if all(over) else " to the least that smoothed labels allow"
    words = f"both losses fall{least}, {ends}: {names[0]} is trained to be recognised by {names[1]}"
    place = next((one.place for one in losses if one.commonest_label == 1), None)
    hint = f"give generated samples the label 0 in the loss of {names[1]}, and 1 in that of {names[0]}"
    if is_hinge:
        hint = "minimise minus the score of generated samples: -D(fake).mean()"
    yield TrainingSighting(None, 0, pair[0].end, words, place, hint=hint)


def _is_least(one: WatchedCriterion) -> bool:
    """Tell whether a criterion ends at its least for constant targets: 0, or the entropy of smoothed labels."""
    end, guesses = progress.late_loss(one), known(one.series.guessing)
    least, first = statistics.fmean(guesses) if guesses else 0.0, one.series.value[0] or 0.0
    return end is not None and abs(end - least) < _NONE_LEFT * first


def _subtracted(case: Case) -> Iterator[TrainingSighting]:
    """A criterion that is subtracted from the loss, and ends far above the cost of guessing."""
    if not any(case.told(events.NEGATED)) or case.course.steps < MIN_STEPS:
        return
    for one in _losses(case):
        values = [value for value in known(one.series.value) if math.isfinite(value)]
        guesses = known(one.series.guessing)
        cost = one.label_entropy or (sum(guesses) / len(guesses) if guesses else math.inf)
        if len(values) >= _MANY and _rises(values) and values[-1] > _FAR_ABOVE * max(cost, values[0]):
            words = f"{one.name} is subtracted from the loss, and rises from {values[0]:.3g} to "
            words += f"{values[-1]:.3g}; chance level is {cost:.3g}"
            yield TrainingSighting(None, one.series.step[0], len(values), words, one.place)


def _rises(values: Sequence[float]) -> bool:
    third = max(len(values) // 3, 1)
    return sum(values[-third:]) > sum(values[:third])


@training_rule("MS723", "loss-has-the-wrong-scale", WARNING, 1, Link.WIRING)
def summed(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The loss of a failing run is a sum over the batch, divided twice or mostly a penalty; or its KL weight is 0.

    Measure: rows of a batch; for a penalty, the share of the criterion in the loss, and the criterion relative to
        that of the best constant output
    Source: the gradient of a sum over n rows is n times that of the mean; our choice: a tenth of the loss at first,
        half of it at the end
    Hint: use reduction='mean' without dividing again, or change the learning rate accordingly
    Why: a summed loss makes steps grow with the batch size; under a penalty that is too large the model learns
        nothing from the data
    """
    yield from (replace(one, hint=_WEIGHT) for one in case.told(events.UNWEIGHTED))
    outweighed = list(_outweighed(case))
    yield from outweighed
    if case.progress.learns is True or outweighed:
        return
    for one in _losses(case):
        rows = max(one.series.rows, default=0)
        scale = scale_of(one, case.course.loss)
        if scale is None or rows <= threshold:
            continue
        if case.fails and one.is_summed and scale > _MORE:
            words = f"{one.name} is a sum over {counted(rows, 'row')}: its gradients are {rows:,}x as large"
        elif 0 < scale < _LESS:
            words = f"the loss is only {scale:.2g} times the mean of {one.name}: it was divided twice"
        else:
            continue
        yield TrainingSighting(None, one.series.step[0], rows, words, one.place)
        return
    if case.fails:
        yield from case.told(events.SUMMED)


def _outweighed(case: Case) -> Iterator[TrainingSighting]:
    """A criterion that other terms of the loss outweigh, and that ends at the cost of the best constant."""
    losses = _losses(case)
    if case.progress.is_adversarial or len(losses) != 1 or case.course.steps < _LONG:
        return
    (one,) = losses
    pairs, guesses = beside_the_loss(one, case.course.loss), known(one.series.guessing)
    if one.label_entropy and not (one.is_summed or one.is_weighted):
        guesses = [one.label_entropy] * len(pairs)
    third = len(pairs) // 3
    if third < _MANY or len(guesses) < third:
        return
    first, middle, last = (
        [statistics.fmean(column) for column in zip(*pairs[start : start + third], strict=True)]
        for start in (0, third, len(pairs) - third)
    )
    cost = statistics.fmean(guesses[-third:])
    is_divergence = any(case.told(events.COLLAPSED))
    is_outweighed = first[0] < _SMALL_SHARE * first[1] and (case.fails or last[1] < 2 * last[0])
    if is_divergence and last[0] > _AS_GUESSED * cost and not any(case.told(events.DETACHED)):
        words = f"{one.name} ends at {last[0]:.3g}, and the best constant output gives {cost:.3g}: it is outweighed"
        words += " by the KL divergence, which is 0 for every sample"
        hint = "sum or average both over the same dimensions, or lower the weight of the KL term"
        link = Link.STANDSTILL if is_silent(case) else None
        since, share = one.series.step[0], last[0] / cost
        yield TrainingSighting(None, since, share, words, one.place, link=link, hint=hint)
    elif is_outweighed and last[0] > _AS_GUESSED * max(cost, middle[0]):
        words = (
            f"{one.name} is outweighed by other terms (at first {first[0]:.2g} of a loss of {rounded(first[1])}): "
            f"it ends at {last[0]:.3g}, and the best constant output gives {cost:.3g}"
        )
        hint = "lower the weight of the other terms, such as a penalty on weights or activations"
        yield TrainingSighting(None, one.series.step[0], first[0] / first[1], words, one.place, hint=hint)


@training_rule("MS724", "shapes-are-broadcast", ERROR, 0, Link.WIRING)
def broadcast(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Prediction and target have different shapes, and are broadcast against each other.

    Measure: dimensions that differ
    Source: certain: torch warns of it too; (n, 1) against (n) gives n x n differences
    Hint: give both the same shape: prediction.squeeze(1), or target.unsqueeze(1)
    Why: every prediction is pulled towards the mean of all targets
    """
    for one in _losses(case):
        if one.shapes is not None:
            given, wanted = (str(tuple(shape)) for shape in one.shapes)
            words = f"{one.name} compares a prediction of shape {given} with a target of shape {wanted}: they"
            words += " are broadcast, so every prediction is compared with every target"
            yield TrainingSighting(None, one.series.step[0], None, words, one.place)
            return
    yield from case.told(events.BROADCAST)


@training_rule("MS725", "one-label-only", WARNING, 32, Link.DATA)
def one_label(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Every label is the same, so there is nothing to learn.

    Measure: labels, all of the same class
    Source: our choice: 32 labels of 2 equally likely classes agree by chance once in 2 billion batches
    Hint: check how the labels are read, and whether the data is shuffled
    Why: a model that always predicts that label has a perfect loss
    Error if: a discriminator receives the same label for real and generated samples
    """
    losses, main = _losses(case), case.progress.main
    yield from _same_label(case) if case.progress.is_adversarial else _sorted(case)
    if case.progress.is_adversarial or len(losses) != 1 or main is None:
        return  # adversaries use one label at a time, and so do parts of many losses
    (one,) = losses
    if has_positions(one) or len(one.series.step) < 3 or sum(one.series.rows) < threshold:
        return
    if one.commonest_label == 1 and main.end < _NEARLY_NOTHING * math.log(max(one.classes or 2, 2)):
        what = f"of {one.classes}" if one.classes else "whatever the image"
        words = f"every label is of the same class, {what}: there is nothing to learn"
        yield TrainingSighting(None, one.series.step[0], 1.0, words, one.place)
    if one.made_by == "sum":
        return  # a difference that should be zero, such as of the two sides of an equation
    variances = known(one.series.target_variance)
    if variances and max(variances) < _NO_VARIANCE and len(variances) == len(one.series.step):
        words = f"all the targets of {one.name} are the same number: there is nothing to learn"
        yield TrainingSighting(None, one.series.step[0], 1.0, words, one.place)


def _same_label(case: Case) -> Iterator[TrainingSighting]:
    """A discriminator with the same label for all its samples.

    Each sample has one: scores that are compared with each other, as in a relativistic GAN, share theirs.
    """
    fed = {one.model for one in case.facts.models if one.is_fed}
    owners = {one.optimizer: one.model for one in case.weights()}
    for label, model in owners.items():
        own = [one for one in _losses(case) if one.optimizers == (label,)]
        given = [one.series.samples[:1] for one in case.facts.inputs if one.model == model and not one.type]
        labels, n_judged = {one.label for one in own}, sum(sum(one.series.rows[:1]) for one in own)
        if model in fed and given[:1] == [(n_judged,)] and len(labels) == 1 and None not in labels:
            words = f"every label of {model} is {labels.pop()}, so it cannot learn which samples are real"
            yield TrainingSighting(None, 0, 1.0, words, own[0].place, severity=ERROR, hint=_BOTH_LABELS)


def _sorted(case: Case) -> Iterator[TrainingSighting]:
    """Batches with labels of one class each, which differs between batches: most; nearly all of pixels."""
    sizes = {one.shape[0] for one in case.facts.inputs if one.shape}
    for one in _losses(case):
        shares = zip(one.series.commonest_label, one.series.rows, strict=True)
        batches = [(share == 1, rows) for share, rows in shares if rows >= _MANY]
        n, n_pure, most = len(batches), sum(is_pure for is_pure, _ in batches), one.commonest_label or 1.0
        by_chance = sum(most ** (rows - 1) for _, rows in batches)
        least = (n + by_chance) / 2 if sizes.intersection(one.series.rows) else n
        if n >= _MANY and most < _NEARLY_ALL and n_pure >= min(least, _NEARLY_ALL * n):
            when = f"in {n_pure} of {n} recorded steps"
            words = f"all labels of a batch are the same {when}: the data is sorted"
            yield TrainingSighting(None, one.series.step[0], most, words, one.place, hint=_SHUFFLE)
            return


@training_rule("MS755", "output-ignores-the-input", ERROR, 8, Link.WIRING)
def ignores_input(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A model returns the same output for every sample.

    Measure: recorded passes, in all of which the output rows are equal although the input rows differ
    Source: certain: the rows are bit-identical, or differ by less than a millionth of their initial difference
    Hint: look for a softmax or norm over a dimension of size 1, a dead activation, or zero weights at the end
    Why: the model cannot learn from an input that does not affect the output
    """
    for one in case.facts.models:
        if case.progress.is_adversarial and one.is_fed:
            continue  # a discriminator is given samples of one kind at a time
        n, n_alike, spread_at_first, spread, *_ = one.outputs
        if n >= threshold and (n_alike == n or (n >= 2 * threshold and spread < _ROUNDING * spread_at_first)):
            when = f"in all {int(n)} recorded passes" if n_alike == n else "at the end of the run"
            words = f"{one.model} returns the same output for all samples of a batch, {when}"
            inner = [layer for layer in case.course.layers if layer.model == one.model][:-1]
            # Another rule reports why
            has_died = any(known(layer.series.zero_fraction)[-1:] == [1.0] for layer in inner)
            is_short = has_died and n_alike < n and not case.may_fail()
            if is_short and all(zeros_since(layer, (1.0).__eq__) is None for layer in inner):
                continue  # it may recover
            link = Link.STANDSTILL if has_died or n_alike < n else None
            since = 0 if n_alike == n else None
            yield TrainingSighting(None, since, n, words, one.called, link=link)


@training_rule("MS759", "output-sees-too-much", ERROR, 0, Link.WIRING)
def leaks(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """An output depends on other samples of the batch, or a contrastive loss compares samples with themselves.

    Leaks found with a copy of the model on a changed batch; adversaries may compare samples on purpose.

    Measure: outputs that change with inputs they must not depend on, in a copy of the model in evaluation mode; or
        the first scores of cross_entropy
    Source: certain: changing the other samples changes the output
    Hint: check dim of each softmax, and batch_first
    Why: at inference those samples are not there, and the model fails
    """
    if not case.progress.is_adversarial:
        yield from case.told(events.LEAKS)
    for one in case.told(events.SELF):
        yield replace(one, hint=_TWO_VIEWS if "positive" in one.message else _MASK)
