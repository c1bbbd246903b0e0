"""What a person asked of the scores of a prediction, checked before anything heavy is imported."""

from typing import TYPE_CHECKING

from modelscope_cli.errors import UsageError
from modelscope_cli.records.keywords import check_choice, check_number

if TYPE_CHECKING:
    from torch import nn

SCORES = ("auto", "softmax", "sigmoid")


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
    if scores == "softmax":
        raise _for_sigmoid(threshold)


def choose_activation(scores: str, threshold: float | None, module: "nn.Module") -> str:
    """Return `softmax` or `sigmoid`: what was asked for, else what the model states of itself.

    Raises:
        UsageError: a threshold, and nothing says that each class is decided on its own (exit 2).
    """
    from modelscope_cli.inputs.model_config import configured_outputs

    if scores == "auto":
        scores = "sigmoid" if configured_outputs(module).has_several_labels else "softmax"
    if threshold is not None and scores == "softmax":
        raise _for_sigmoid(threshold)
    return scores


def _for_sigmoid(threshold: float) -> UsageError:
    return UsageError(f"'--threshold {threshold:g}' is for sigmoid", "--scores sigmoid")
