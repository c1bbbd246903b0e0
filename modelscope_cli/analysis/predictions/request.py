"""The scoring options of `predict`, checked before torch is imported."""

from typing import TYPE_CHECKING

from modelscope_cli.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


def check_scoring(scores: str, threshold: float | None, temperature: float) -> None:
    """Refuse a threshold with softmax."""
    if threshold is not None and scores == "softmax":
        raise _for_sigmoid(threshold)


def choose_activation(scores: str, threshold: float | None, module: "nn.Module") -> str:
    """Return `softmax` or `sigmoid`: as requested, else as the model's configuration states."""
    from modelscope_cli.inputs.model_config import configured_outputs

    if scores == "auto":
        scores = "sigmoid" if configured_outputs(module).has_several_labels else "softmax"
    if threshold is not None and scores == "softmax":
        raise _for_sigmoid(threshold)
    return scores


def _for_sigmoid(threshold: float) -> UsageError:
    return UsageError(f"'--threshold {threshold:g}' is for sigmoid", "--scores sigmoid")
