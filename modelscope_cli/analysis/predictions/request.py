"""The scoring options of `predict`, checked before torch is imported."""

from modelscope_cli.errors import UsageError
from modelscope_cli.library_types import Module


def check_scoring(scores: str, threshold: float | None) -> None:
    """Refuse a threshold with softmax."""
    if threshold is not None and scores == "softmax":
        raise UsageError(f"'--threshold {threshold:g}' is for sigmoid", "--scores sigmoid")


def choose_activation(scores: str, threshold: float | None, module: Module) -> str:
    """Return `softmax` or `sigmoid`: as requested, else as the model's configuration or last layer says."""
    from modelscope_cli.inputs.model_config import configured_outputs, ends_in_sigmoid

    if scores == "auto":
        is_several = configured_outputs(module).has_several_labels or ends_in_sigmoid(module)
        scores = "sigmoid" if is_several else "softmax"
    check_scoring(scores, threshold)
    return scores
