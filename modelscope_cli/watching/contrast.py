"""Scores of a contrastive loss that compare a sample with itself."""

import torch
from torch import Tensor

_FEWEST, _MOST, _SOME = 8, 1 << 22, 64  # rows; values; columns
_SAME, _DIFFERENT = 1e-5, 1e-3  # shares of the score of a positive


def compared_with_itself(scores: Tensor, target: Tensor) -> str | None:
    """Describe a similarity matrix whose diagonal is not masked, or two views that are the same image.

    None if neither is certain, as in half precision, which rounds too much.
    """
    if scores.ndim != 2 or target.shape != scores.shape[:1] or target.is_floating_point():
        return None
    n, n_columns = scores.shape
    is_rounded = scores.dtype != torch.float32 or torch.is_autocast_enabled(scores.device.type)
    if is_rounded or not _FEWEST <= n <= n_columns or scores.numel() > _MOST:
        return None
    with torch.no_grad():
        positive = scores.gather(1, target.clamp(0, n_columns - 1)[:, None])[:, 0]
        highest, scale = scores.max(1).values, positive.abs().max()
        others = scores[:, :_SOME].median(1).values
        is_one_score = (highest.max() - positive.min() < _SAME * scale) & (target >= 0).all()
        if bool(is_one_score & (others.max() - others.min() > _DIFFERENT * scale)):
            return f"every positive has the highest score, {float(highest[0]):.3g}: both views are the same image"
        if n != n_columns:
            return None
        own = target == torch.arange(n, device=target.device)
        is_symmetric = ((scores - scores.T).abs() <= _SAME * scale).all() & (target >= 0).all() & ~own.any()
        n_own = int(((scores.diagonal() == highest) & (others < highest)).sum())
        if bool(is_symmetric) and 2 * n_own > n:
            words = f"the scores include those of each sample with itself, the highest in {n_own} of {n} rows"
            return f"{words}, but never the label"
    return None
