"""When a gradient is called zero, vanishing, exploding or non-finite. Standard library."""

from modelscope_cli.analysis.gradients.request import Thresholds


def mark_gradient(norm: float, n_non_finite: int, output_norm: float, thresholds: Thresholds) -> str:
    """Return the mark of a gradient, empty where nothing is wrong with it.

    Args:
        norm: of its finite values, before clipping.
        n_non_finite: how many values are NaN or infinite.
        output_norm: norm of the gradient the loss sends into the model. Measuring against it, a confident
            prediction, whose gradients are all small, is not called vanishing.
    """
    if n_non_finite:
        return "non-finite"
    if norm == 0:
        return "zero"
    if not 0 < output_norm < float("inf"):
        return ""
    if norm < thresholds.vanishing * output_norm:
        return "vanishing"
    if norm > thresholds.exploding * output_norm:
        return "exploding"
    return ""
