"""The scoring options of `predict`, checked before torch is imported."""

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.truth import GivenTruth
from modelscope_cli.records.refusals import check_range, check_word


def check_scoring(scores: str, threshold: float | None, top: int | None = None) -> None:
    """Refuse values out of bounds, and a threshold with softmax."""
    check_word("scores", scores, ("auto", "softmax", "sigmoid"))
    check_range("threshold", threshold, least=0, most=1)
    check_range("top", top, least=1)
    if threshold is not None and scores == "softmax":
        raise UsageError(f"'--threshold {threshold:g}' needs sigmoid scores", "--scores sigmoid")


def choose_activation(
    scores: str, threshold: float | None, has_several: bool, truth: GivenTruth | None = None
) -> str:
    """Return `softmax` or `sigmoid`: as requested, else as the output says (`has_several`: see `ClassScores`), or a
    truth of several classes."""
    if scores == "auto":
        scores = "sigmoid" if has_several or (truth is not None and truth.has_several) else "softmax"
    check_scoring(scores, threshold)
    return scores
