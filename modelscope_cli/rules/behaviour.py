"""MS6xx: predictions."""

from collections.abc import Iterator

from modelscope_cli.records.check import ERROR, WARNING
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.naming import ENOUGH_ALIKE, label_of, some
from modelscope_cli.rules.activations import foreign_inputs
from modelscope_cli.rules.rule import Sighting, rule


def _no_disagreement_to_judge(evidence: Evidence, threshold: float) -> str | None:
    if evidence.is_fresh:
        return "its batch norms have not seen a batch yet"
    assert evidence.train is not None
    return (
        "the outputs in train and eval mode cannot be compared" if evidence.train.output_gap is None else None
    )


def _no_output_to_judge(evidence: Evidence, threshold: float) -> str | None:
    assert evidence.settled is not None
    if not evidence.settled.is_finite:
        return "forward values are not finite"
    return (
        "the output is not one row per image, or all images are the same"
        if evidence.settled.output_spread is None
        else None
    )


def _no_repeat_to_judge(evidence: Evidence, threshold: float) -> str | None:
    return "the output is zero or not a tensor" if evidence.repeat_gap is None else None


def _too_few(evidence: Evidence, threshold: float) -> str | None:
    assert evidence.forward is not None
    answers = evidence.forward.answers
    if not evidence.forward.is_finite:
        return "forward values are not finite"
    if evidence.forward.output_spread == 0:
        return "the output is bit-identical for all images"
    if answers is None:
        return "the output is not scores of classes"
    if not evidence.is_real:
        return "noise has no class: give images"
    if evidence.only_class is not None:
        return f"all images are of one class, '{evidence.only_class}', by their folder"
    if len(answers) < threshold:
        return f"{len(answers)} of the {threshold:g} images that it needs"
    return None


_UNLIKE_TRAINING = 10  # the mean square at a batch norm that one input in ten exceeds, by Markov's inequality


@rule(
    "MS601",
    "class-collapse",
    WARNING,
    ENOUGH_ALIKE,
    needs=frozenset({"forward"}),
    wants=frozenset({"inputs"}),
    excuse=_too_few,
)
def _collapse(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The prediction is the same class for every image.

    Measure: images needed
    Source: our reasoning: with ten equally likely classes, 8 images agree by chance once in 10 million; an error if
        MS208 holds as well
    Hint: modelscope predict MODEL IMAGE...   shows the scores; check labels, loss and preprocessing
    Why: a model that predicts the same for everything has not learnt, or receives inputs unlike its training
        data
    """
    assert evidence.forward is not None
    answers = evidence.forward.answers or ()
    if len(set(answers)) == 1:
        message = f"class {answers[0]} for every one of {len(answers)} images"
        far = foreign_inputs(evidence, _UNLIKE_TRAINING)
        if far:
            message += f", and the inputs of {label_of(far[0][0])} are unlike its running statistics"
        yield Sighting(None, len(answers), message, ERROR if far else None)


@rule(
    "MS602", "non-deterministic", ERROR, 1.3e-6, needs=frozenset({"repeat_gap"}), excuse=_no_repeat_to_judge
)
def _repeat(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Two runs on the same input give different outputs in eval mode.

    Measure: |second - first| / |first|
    Source: torch.testing.assert_close: rtol of float32
    Hint: look for torch.rand or F.dropout(x) without training=self.training; on cuda see
        torch.use_deterministic_algorithms
    Why: a result that changes from run to run cannot be compared, debugged or tested
    """
    gap = evidence.repeat_gap
    if gap is not None and gap > threshold:
        words = f"two runs on the same input in eval mode differ by {gap:.2g} of the output"
        is_meant = bool(evidence.draws) and not any("dropout" in draw for draw in evidence.draws)
        source = f"; it draws {some(evidence.draws)}" if evidence.draws else ""
        yield Sighting(None, gap, words + source, WARNING if is_meant else None)


@rule("MS604", "constant-output", ERROR, 0, needs=frozenset({"forward"}), excuse=_no_output_to_judge)
def _constant(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The output does not depend on the input.

    Measure: largest difference between the outputs for different images
    Source: our reasoning: if the input has any effect, rounding errors alone make two outputs differ
    Hint: modelscope stats MODEL   shows the layer after which nothing varies; look for dead layers and zero
        weights
    Why: such a model predicts the same for every image, whatever it has learnt
    """
    assert evidence.settled is not None
    spread = evidence.settled.output_spread
    if spread is not None and spread <= threshold:
        yield Sighting(None, spread, "the output is bit-identical for different images")


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

    Measure: |train - eval| / |eval| of the output
    Source: our measurement: at most 0.7 for trained samples, 1.7 for torchvision networks with dropout
    Hint: check the code that reads self.training, and batch norm: modelscope stats MODEL --mode train --table
        batch-norm
    Why: eval mode, the model in use, computes another function than the one that was trained
    """
    gap = evidence.train.output_gap if evidence.train else None
    if gap is not None and gap > threshold:
        yield Sighting(
            None, gap, f"the train-mode output differs from the eval-mode output by {gap:.2g}x its norm"
        )
