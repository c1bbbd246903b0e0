"""The scoring options of `predict`, checked before torch is imported."""

from modelscope_cli.errors import UsageError
from modelscope_cli.records.refusals import check_range, check_word


def check_scoring(scores: str, threshold: float | None, top: int | None = None) -> None:
    """Refuse values out of bounds, and a threshold with softmax."""
    check_word("scores", scores, ("auto", "softmax", "sigmoid"))
    check_range("threshold", threshold, least=0, most=1)
    check_range("top", top, least=1)
    if threshold is not None and scores == "softmax":
        raise UsageError(f"'--threshold {threshold:g}' needs sigmoid scores", "--scores sigmoid")
