"""MS720 to MS725: what stands between the model and the loss."""

import math
from collections.abc import Iterator, Sequence

from modelscope_cli.records.check import ERROR, WARNING
from modelscope_cli.records.naming import counted
from modelscope_cli.records.watch import BROADCAST, LEAKS, SUMMED, WRONG_SIGN, WatchedCriterion
from modelscope_cli.rules.training.case import Case, Link, TrainingRule, TrainingSighting, known
from modelscope_cli.rules.training.progress import MIN_STEPS, has_one_place, scale_of

_WITHIN = {"cross_entropy": "softmax", "binary_cross_entropy_with_logits": "sigmoid"}
_WIDTH = {"sigmoid": 1.0, "tanh": 2.0, "hardtanh": 2.0}  # of the range of what an activation gives
_NO_VARIANCE = 1e-12
_NEARLY_NOTHING = 0.5  # of what guessing between all classes costs
_WITHOUT_END = (
    20.0  # times its first size: a likelihood or a reward may be below zero, and does not fall so far
)
_MANY = 8  # rows of a batch, that are all of one class by chance once in 128 times at most; steps
_NEARLY_ALL = 0.9  # of the steps; of the labels
_LESS = 0.05  # times the criterion's mean over its rows
_MORE = 1.5  # times the criterion's mean over its rows; a script may well divide a sum by them


def _losses(case: Case) -> list[WatchedCriterion]:
    return [one for one in case.facts.criteria if one.is_training and one.series.step]


def applied_twice(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Probabilities where logits are expected."""
    for one in _losses(case):
        n = len(one.series.step)
        if n < threshold or not all(one.series.is_probability):
            continue
        inner = _WITHIN.get(one.name)
        if inner == "softmax" and (one.classes or 0) > 1:
            words = (
                f"{one.name} receives probabilities (they sum to 1), but applies softmax itself{_floor(one)}"
            )
        elif inner == "sigmoid" and one.made_by in ("sigmoid", "softmax"):
            words = f"{one.name} receives the output of {one.made_by}, but applies sigmoid itself"
        elif one.name == "nll_loss" and one.made_by not in ("log_softmax",):
            words = "nll_loss receives probabilities, but expects log-probabilities"
        else:
            continue
        yield TrainingSighting(None, one.series.step[0], n, words, one.place)


def _floor(one: WatchedCriterion) -> str:
    """Say how low the loss can get when softmax is applied to probabilities."""
    lowest = math.log(math.e + (one.classes or 1) - 1) - 1
    return f", so that the loss cannot fall below {lowest:.3g}"


def logits_not_logarithms(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """`nll_loss` of logits, which falls below zero without end; or probabilities over something but the classes."""
    for one in _losses(case):
        over = (one.made_by or "").partition(" over ")[2]
        if over:
            words = f"the probabilities that {one.name} receives sum to 1 over {over}, not over the classes"
            yield TrainingSighting(None, one.series.step[0], None, words, one.place)
            continue
        if one.name == "kl_div" and len(one.series.step) >= threshold and all(one.series.is_positive):
            words = "kl_div receives probabilities, but expects log-probabilities, which are never above zero"
            yield TrainingSighting(None, one.series.step[0], None, words, one.place)
            continue
        values = known(one.series.value)
        is_bare = one.name == "nll_loss" and one.made_by != "log_softmax" and len(values) >= threshold
        if is_bare and min(values) < 0 and not all(one.series.is_probability):
            words = "nll_loss is negative: it receives scores, but expects log-probabilities"
            yield TrainingSighting(None, one.series.step[0], min(values), words, one.place)


def squashed(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    yield from _squashed_logits(case, threshold)
    yield from _out_of_reach(case, threshold)


def _squashed_logits(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    for one in _losses(case):
        if one.name not in _WITHIN or one.made_by not in ("relu", "tanh", "sigmoid", "hardtanh"):
            continue
        if one.made_by == _WITHIN[one.name] or len(one.series.step) < threshold:
            continue
        lost = "nothing below zero" if one.made_by == "relu" else "nothing beyond 1"
        words = f"{one.name} receives the output of {one.made_by}, so its logits can be {lost}"
        yield TrainingSighting(None, one.series.step[0], len(one.series.step), words, one.place)


def _out_of_reach(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Numbers that vary more than any within the range of the activation that should give them."""
    for one in _losses(case):
        variances = known(one.series.target_variance)
        most = (_WIDTH.get(one.made_by or "", math.inf) / 2) ** 2
        if len(variances) >= threshold and min(variances) > most:
            words = (
                f"{one.name} compares the output of {one.made_by} with targets whose standard deviation is "
                f"{math.sqrt(variances[0]):.3g}: most of them are out of range"
            )
            yield TrainingSighting(None, one.series.step[0], len(variances), words, one.place)


def wrong_sign(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """What is minimised is minus a criterion, an optimizer is told to maximise one, or a loss falls without end."""
    if case.progress.is_adversarial:
        return
    for one in _losses(case):
        pairs = _beside_the_loss(case, one)
        if len(pairs) < threshold or not _rises([value for value, _ in pairs]):
            continue
        rise = f"which rises from {pairs[0][0]:.3g} to {pairs[-1][0]:.3g}"
        maximizer = next((each for each in case.facts.optimizers if each.maximizes), None)
        if all(value > 0 and loss < 0 for value, loss in pairs):
            words, place = f"the loss is minus {one.name}, {rise}", one.place
        elif maximizer is not None:
            words, place = f"{maximizer.optimizer} maximises the loss, {rise}", maximizer.made
        else:
            continue
        yield TrainingSighting(None, one.series.step[0], len(pairs), words, place)
        return
    told = list(case.told(WRONG_SIGN))
    yield from told
    main = case.progress.main
    if not told and main is not None and main.n >= MIN_STEPS and main.has_been_negative:
        scale = max(abs(main.first), abs(main.start), 1.0)
        if main.end < -_WITHOUT_END * scale:
            words = f"the loss falls below zero without limit, from {main.first:.3g} to {main.end:.3g}"
            yield TrainingSighting(None, 0, main.end, words)


def _rises(values: Sequence[float]) -> bool:
    third = max(len(values) // 3, 1)
    return sum(values[-third:]) > sum(values[:third])


def _beside_the_loss(case: Case, one: WatchedCriterion) -> list[tuple[float, float]]:
    """Return the values of a criterion and the losses of the same steps, where they are finite."""
    losses = {
        step: value
        for series in case.course.loss
        for step, value in zip(series.step, series.value, strict=True)
    }
    return [
        (value, loss)
        for step, value in zip(one.series.step, one.series.value, strict=True)
        if value is not None and (loss := losses.get(step)) is not None
        if math.isfinite(loss) and math.isfinite(value)
    ]


def summed(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A sum over the batch, in a training that fails."""
    if case.progress.learns is True:
        return
    for one in _losses(case):
        rows = max(one.series.rows, default=0)
        scale = scale_of(one, case.course.loss)
        if scale is None or rows <= threshold:
            continue
        if case.fails and one.is_summed and scale > _MORE:
            words = f"{one.name} is a sum over {counted(rows, 'row')}, so its gradients are that many times larger"
        elif 0 < scale < _LESS:
            words = f"the loss is only {scale:.2g} times the mean of {one.name}: it was divided twice"
        else:
            continue
        yield TrainingSighting(None, one.series.step[0], rows, words, one.place)
        return
    if not case.fails:
        return
    yield from case.told(SUMMED)


def broadcast(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    for one in _losses(case):
        if one.shapes is not None:
            given, wanted = (str(tuple(shape)) for shape in one.shapes)
            words = (
                f"{one.name} compares a prediction of shape {given} with a target of shape {wanted}: they "
                "are "
            )
            words += "broadcast, so every prediction is compared with every target"
            yield TrainingSighting(None, one.series.step[0], None, words, one.place)
            return
    yield from case.told(BROADCAST)


def one_label(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Every label is the same, and the loss goes to zero with nothing learnt; or every label of a batch."""
    losses = _losses(case)
    if not case.progress.is_adversarial:
        yield from _sorted(losses)
    main = case.progress.main
    if case.progress.is_adversarial or len(losses) != 1 or main is None:
        return  # adversaries are told one label at a time, and so are the parts of many a loss
    (one,) = losses
    if has_one_place(one) or len(one.series.step) < 3 or sum(one.series.rows) < threshold:
        return
    if one.commonest_label == 1 and main.end < _NEARLY_NOTHING * math.log(max(one.classes or 2, 2)):
        what = f"of {one.classes}" if one.classes else "whatever the image"
        words = f"every label is of the same class, {what}: there is nothing to learn"
        yield TrainingSighting(None, one.series.step[0], 1.0, words, one.place)
    if one.made_by == "sum":
        return  # a difference that is to be zero, as of the sides of an equation
    variances = known(one.series.target_variance)
    if variances and max(variances) < _NO_VARIANCE and len(variances) == len(one.series.step):
        words = f"all the targets of {one.name} are the same number: there is nothing to learn"
        yield TrainingSighting(None, one.series.step[0], 1.0, words, one.place)


def _sorted(losses: Sequence[WatchedCriterion]) -> Iterator[TrainingSighting]:
    """Batches each of which has labels of one class only, and not all of the same."""
    for one in losses:
        pure = [
            share == 1
            for share, rows in zip(one.series.commonest_label, one.series.rows, strict=True)
            if rows >= _MANY
        ]
        most = one.commonest_label
        if (
            len(pure) >= _MANY
            and sum(pure) >= _NEARLY_ALL * len(pure)
            and most is not None
            and most < _NEARLY_ALL
        ):
            words = f"all labels of a batch are of one class in {sum(pure)} of {len(pure)} recorded steps"
            yield TrainingSighting(None, one.series.step[0], most, f"{words}: the data is sorted", one.place)
            return


def ignores_input(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Certain: all rows of the output are the same in every pass, and those of the input are not."""
    for one in case.facts.models:
        n, n_alike, *_ = one.outputs
        if n >= threshold and n_alike == n:
            words = (
                f"{one.model} returns the same output for all samples of a batch, in all {int(n)} recorded "
                "passes"
            )
            inner = [layer for layer in case.course.layers if layer.model == one.model][:-1]
            has_died = any(
                known(layer.series.zero_fraction)[-1:] == [1.0] for layer in inner
            )  # another rule says why
            yield TrainingSighting(None, 0, n, words, one.called, link=Link.STANDSTILL if has_died else None)


def leaks(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Judged by one changed pass of a copy; two adversaries may compare the samples of a batch on purpose."""
    if not case.progress.is_adversarial:
        yield from case.told(LEAKS)


RULES = (
    TrainingRule(
        code="MS755",
        name="output-ignores-the-input",
        severity=ERROR,
        sentence="a model returns the same output for every sample",
        threshold=8,
        measure="recorded passes, all with equal rows in the output and different rows in the input",
        source="certain: the rows are bit-identical",
        hint=(
            "look for softmax or a norm over a dimension of size 1, a dead activation, or a weight of zeros "
            "at the end of the model"
        ),
        link=Link.WIRING,
        judge=ignores_input,
    ),
    TrainingRule(
        code="MS759",
        name="output-sees-too-much",
        severity=ERROR,
        sentence="an output depends on other samples of the batch, or on the tokens that it is to predict",
        threshold=0,
        measure="outputs that change with what they must not see, in a copy of the model in evaluation mode",
        source="certain: one pass with the other samples, or the last token, changed; samples are told from the "
        "points or frames of one thing by a softmax over them, or by sequences whose places are expected first",
        hint="look at dim in softmax and at batch_first; give attention its mask",
        link=Link.WIRING,
        judge=leaks,
    ),
    TrainingRule(
        code="MS720",
        name="softmax-before-the-loss",
        severity=ERROR,
        sentence="a loss that expects logits receives probabilities",
        threshold=3,
        measure="recorded steps, in all of which every row holds probabilities",
        source="torch.nn.CrossEntropyLoss: the input is expected to contain the unnormalized logits",
        hint="remove the softmax or sigmoid before the loss; for nll_loss use log_softmax",
        link=Link.WIRING,
        judge=applied_twice,
    ),
    TrainingRule(
        code="MS738",
        name="logits-in-nll-loss",
        severity=ERROR,
        sentence=(
            "a criterion that expects log-probabilities receives scores, or probabilities over the wrong "
            "dimension"
        ),
        threshold=3,
        measure="recorded steps; a log-probability is at most zero, so this loss is never negative, and "
        "probabilities sum to 1 over the classes",
        source="torch.nn.NLLLoss: the input is expected to contain log-probabilities",
        hint="use cross_entropy, or log_softmax before nll_loss, over the class dimension: 1, or the last "
        "for ctc_loss",
        link=Link.WIRING,
        judge=logits_not_logarithms,
    ),
    TrainingRule(
        code="MS721",
        name="activation-on-the-logits",
        severity=WARNING,
        sentence="the loss is computed from the output of an activation that clips it",
        threshold=3,
        measure="recorded steps",
        source="certain: logits need both signs and any magnitude, but the activation limits them",
        hint="remove the activation after the last layer",
        link=Link.WIRING,
        judge=squashed,
    ),
    TrainingRule(
        code="MS722",
        name="loss-has-the-wrong-sign",
        severity=ERROR,
        sentence="the steps make the criterion larger",
        threshold=3,
        measure="recorded steps, all with a loss below zero and a criterion above",
        source="certain: the criterion rises as the loss falls",
        hint="remove the minus before the loss, or maximize=True",
        link=Link.WIRING,
        judge=wrong_sign,
    ),
    TrainingRule(
        code="MS723",
        name="loss-has-the-wrong-scale",
        severity=WARNING,
        sentence="the loss is a sum over the batch, or was divided twice, and the training fails",
        threshold=1,
        measure="rows of a batch",
        source="the gradient of a sum over n rows is n times that of the mean, and so is the step",
        hint="use reduction='mean' without dividing again, or change the learning rate accordingly",
        link=Link.WIRING,
        judge=summed,
    ),
    TrainingRule(
        code="MS724",
        name="shapes-are-broadcast",
        severity=ERROR,
        sentence="prediction and target have different shapes, and are broadcast against each other",
        threshold=0,
        measure="dimensions that differ",
        source="certain: torch warns of it too; (n, 1) against (n) gives n x n differences",
        hint="give both the same shape: prediction.squeeze(1), or target.unsqueeze(1)",
        link=Link.WIRING,
        judge=broadcast,
    ),
    TrainingRule(
        code="MS725",
        name="one-label-only",
        severity=WARNING,
        sentence="every label is the same, so there is nothing to learn",
        threshold=32,
        measure="labels, all of one class",
        source="own choice: 32 labels of 2 equally likely classes agree by chance once in 2 billion batches",
        hint="check how the labels are read, and whether the data is shuffled",
        link=Link.DATA,
        judge=one_label,
    ),
)
