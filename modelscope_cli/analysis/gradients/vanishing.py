"""The mark of a gradient in a row of `grads`. Standard library."""

from modelscope_cli.analysis.gradients.request import Thresholds
from modelscope_cli.records.grads import mark


def mark_gradient(norm: float, n_non_finite: int, output_norm: float, thresholds: Thresholds | None) -> str:
    """Return the mark of a gradient, empty where nothing is wrong with it.

    Args:
        norm: of its finite values, before clipping.
        n_non_finite: how many values are NaN or infinite.
        output_norm: norm of the gradient the loss sends into the model.
        thresholds: None where its size means nothing, and only what is zero or not finite is marked.
    """
    if n_non_finite:
        return "non-finite"
    if thresholds is None:
        return "zero" if norm == 0 else ""
    return mark(norm, output_norm, thresholds.vanishing, thresholds.exploding)
