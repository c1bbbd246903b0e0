"""What a person asked of the scores of a prediction, checked before anything heavy is imported."""

from modelscope_cli.errors import UsageError
from modelscope_cli.records.keywords import check_choice, check_number

SCORES = ("softmax", "sigmoid")


def check_scoring(scores: str, threshold: float | None, temperature: float) -> None:
    """Refuse scores that mean nothing.

    Raises:
        UsageError: exit code 2.
    """
    check_choice("scores", scores, SCORES)
    if not 0 < temperature < float("inf"):
        raise UsageError(f"'--temperature {temperature:g}' is not a number above 0", "--temperature 2")
    if threshold is None:
        return
    check_number("threshold", threshold, 0, 1)
    if scores != "sigmoid":
        raise UsageError(f"'--threshold {threshold:g}' is for sigmoid", "--scores sigmoid")
