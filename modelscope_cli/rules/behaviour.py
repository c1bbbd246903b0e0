"""MS6xx: predictions; MS506: the budget for them."""

from collections.abc import Iterator

from modelscope_cli.records.check import Accuracy
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import ENOUGH_ALIKE, counted, label_of, percent, rounded, some
from modelscope_cli.rules.activations import FORWARD, foreign_inputs, right_by, unused_statistics
from modelscope_cli.rules.rule import Sighting, rule


def _no_disagreement_to_judge(evidence: Evidence, threshold: float) -> str | None:
    assert evidence.train is not None
    unlike = "the outputs in train and eval mode cannot be compared"
    return unused_statistics(evidence) or (unlike if evidence.train.output_gap is None else None)


def _no_output_to_judge(evidence: Evidence, threshold: float) -> str | None:
    assert evidence.settled is not None
    if not evidence.settled.is_finite:
        return "forward values are not finite"
    is_known = evidence.settled.output_spread is not None
    return None if is_known else "the output is not one row per image, or all images are the same"


def _no_classes(evidence: Evidence) -> str | None:
    assert evidence.forward is not None
    if not evidence.forward.is_finite:
        return "forward values are not finite"
    if evidence.forward.output_spread == 0:
        return "the output is bit-identical for all images"
    if evidence.forward.answers is None:
        return "the output is not class scores"
    if not evidence.is_real:
        return "noise has no class: give images"
    if evidence.only_class is not None:
        return f"all images are of the same class, '{evidence.only_class}', by their folder"
    return None


def _too_few(evidence: Evidence, threshold: float) -> str | None:
    assert evidence.forward is not None
    n = len(evidence.forward.answers or ())
    few = f"at least {threshold:g} images are needed, not {n}" if n < threshold else None
    return _no_classes(evidence) or few


def _unknown_accuracy(evidence: Evidence, threshold: float) -> str | None:
    unnamed = "the images are not in folders named after the classes" if evidence.accuracy is None else None
    return _no_classes(evidence) or unnamed


def _unknown_if_met(evidence: Evidence, threshold: float) -> str | None:
    """Return why a sufficient accuracy says nothing; one below the limit is judged whatever the reason."""
    one = evidence.accuracy
    return None if one and one.right.value < threshold else _unknown_accuracy(evidence, threshold)


def _unclear_accuracy(evidence: Evidence, threshold: float) -> str | None:
    """Return why the accuracy cannot be compared with chance: the interval holds chance and a good accuracy."""
    if (reason := _unknown_accuracy(evidence, threshold)) is not None:
        return reason
    assert evidence.accuracy is not None
    assert evidence.forward is not None
    one, answers = evidence.accuracy, evidence.forward.answers or ()
    if len(answers) >= ENOUGH_ALIKE and len(set(answers)) == 1:  # MS601
        return "the prediction is the same class for every image"
    if one.right.low <= one.chance and 1 - one.right.high <= threshold * (1 - one.chance):
        return f"too few images to tell the {_in_words(one)} from chance"
    return None


def _in_words(one: Accuracy) -> str:
    return f"accuracy {percent(one.right.value, 1)} of {counted(one.images, 'image')}"


_UNLIKE_TRAINING = 10  # the mean square at a batch norm that one input in ten exceeds, by Markov's inequality
_INPUTS = frozenset({"inputs"})


@rule("MS601", "class-collapse", WARNING, ENOUGH_ALIKE, needs=FORWARD, wants=_INPUTS, excuse=_too_few)
def _collapse(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The prediction is the same class for every image.

    Measure: images needed
    Source: our reasoning: with ten equally likely classes, 8 images agree by chance once in 10 million
    Hint: modelscope predict MODEL IMAGE...   shows the scores; check labels, loss and preprocessing
    Why: a model that predicts the same for everything has not learnt, or receives inputs unlike its training data
    Error if: a batch norm receives inputs unlike those of its running statistics
    """
    assert evidence.forward is not None
    answers = evidence.forward.answers or ()
    if len(set(answers)) == 1:
        message = f"class {answers[0]} is predicted for all {len(answers)} images"
        far = foreign_inputs(evidence, _UNLIKE_TRAINING)
        if far:
            message += f", and the inputs of {label_of(far[0][0])} do not match its running statistics"
        yield Sighting(None, len(answers), message, ERROR if far else None)


@rule(
    "MS602",
    "non-deterministic",
    WARNING,
    1.3e-6,
    needs=frozenset({"repeat_gap"}),
    excuse=lambda seen, _: "the output is zero or not a tensor" if seen.repeat_gap is None else None,
)
def _repeat(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Two runs on the same input give different outputs in eval mode.

    Measure: |second - first| / |first|
    Source: torch.testing.assert_close: rtol of float32
    Hint: look for torch.rand or F.dropout(x) without training=self.training; on cuda see
        torch.use_deterministic_algorithms
    Why: a result that changes from run to run cannot be compared, debugged or tested
    Error if: dropout draws the random numbers, or no call that draws any was seen
    """
    gap = evidence.repeat_gap
    if gap is not None and gap > threshold:
        words = f"two runs on the same input in eval mode differ by {rounded(gap)}x the norm of the output"
        is_meant = bool(evidence.draws) and not any("dropout" in draw for draw in evidence.draws)
        source = f"; the model calls {some(evidence.draws)}" if evidence.draws else ""
        yield Sighting(None, gap, words + source, None if is_meant else ERROR)


@rule("MS604", "constant-output", ERROR, 0, needs=FORWARD, excuse=_no_output_to_judge, follows=("MS202",))
def _constant(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The output does not depend on the input.

    Measure: largest difference between the outputs for different images; 0.4 % for exploding scores
    Source: our reasoning: if the input has any effect, rounding alone makes outputs differ
    Hint: modelscope stats MODEL   shows where nothing varies; look for dead layers and zero weights
    Why: such a model predicts the same for every image, whatever it has learnt
    """
    assert evidence.settled is not None
    spread, (layer, words) = evidence.settled.output_spread, evidence.settled.lost or (None, "")
    if spread is not None and spread <= threshold:
        why = f": {words}" * bool(words)
        yield Sighting(layer, spread, f"the output is bit-identical for different images{why}")
    elif spread and words:
        yield Sighting(layer, spread, f"the output hardly depends on the image: {words}", is_rest=True)


@rule(
    "MS603",
    "train-eval-disagreement",
    WARNING,
    2,
    needs=frozenset({"train", "batch_norms"}),
    excuse=_no_disagreement_to_judge,
)
def _disagreement(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The train-mode output is very different from the eval-mode output.

    Measure: |train - eval| / |eval| of the output; or accuracy that is lower in eval mode, and returns once the
        modules whose code reads self.training run in train mode
    Source: our measurement: at most 0.7 for the trained sample networks, 1.7 for torchvision networks with dropout
    Hint: check the code that reads self.training, and batch norm: modelscope stats MODEL --mode train --json
    Why: a deployed model runs in eval mode, and then does not compute what was trained
    Error if: the accuracy is lower in eval mode, and running statistics are not the cause
    """
    train = evidence.train
    assert train is not None
    gap = train.output_gap
    cause, words = right_by(evidence)
    told = {
        "code": f"the code of {some(train.code)} reads self.training",
        "all": "the output differs in train mode, which neither the norms nor the code explain on their own",
    }
    if cause in told:
        yield Sighting(None, gap, told[cause] + words, ERROR)
    elif not cause and gap is not None and gap > threshold:
        times = rounded(gap)
        yield Sighting(
            None, gap, f"the train-mode output differs from the eval-mode output by {times}x its norm"
        )


_ACCURACY = frozenset({"accuracy", "forward"})


@rule("MS506", "min-accuracy", ERROR, None, needs=_ACCURACY, excuse=_unknown_if_met, most=1)
def _accuracy(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The accuracy is below the limit you set.

    Measure: share of images predicted as the class that their folder is named after
    Source: set by you; computed as in modelscope predict
    Hint: modelscope predict MODEL FOLDER --truth folders --table confusions   shows which classes are confused
    Why: you set this limit: a model that is wrong more often should not be released
    """
    assert evidence.accuracy is not None
    value = evidence.accuracy.right.value
    message = f"{_in_words(evidence.accuracy)}, {percent(threshold, 1)} required"
    yield Sighting(None, value, message, is_met=value >= threshold)


@rule("MS605", "chance-accuracy", WARNING, 0.5, needs=_ACCURACY, excuse=_unclear_accuracy)
def _chance(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The model is no more accurate than always predicting the most frequent class.

    Measure: lower end of the 95 % interval of the error rate, relative to always predicting the most frequent
        class; the upper end is at least 1
    Source: our reasoning: if the interval also includes half of that error rate, there are too few images to tell
    Hint: modelscope predict MODEL FOLDER --truth folders --table classes   shows each class; check the
        checkpoint, the order of the labels and the preprocessing
    Why: the model has learnt nothing that helps here, or its weights, labels or images are not those it was trained
        with
    """
    assert evidence.accuracy is not None
    one = evidence.accuracy
    if one.right.low <= one.chance:
        interval = f"95 % interval {percent(one.right.low, 1)} to {percent(one.right.high, 1)}"
        chance = f"chance, {percent(one.chance, 1)} for always predicting {one.most_frequent}"
        message = f"{_in_words(one)} ({interval}) is not above {chance}"
        yield Sighting(None, (1 - one.right.high) / (1 - one.chance), message)
