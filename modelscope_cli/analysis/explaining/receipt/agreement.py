"""Do the methods say the same? Rank correlations between their maps."""

from collections.abc import Mapping

from torch import Tensor

from modelscope_cli.analysis.explaining.receipt.rankings import spearman


def agreement(maps: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Return for each map, `(H, W)` all, its mean rank correlation with the others; None for a flat or lone one."""
    names = list(maps)
    pairs = {(a, b): spearman(maps[a], maps[b]) for i, a in enumerate(names) for b in names[i + 1 :]}
    means = {}
    for name in names:
        own = [rho for pair, rho in pairs.items() if name in pair and rho is not None]
        means[name] = sum(own) / len(own) if own else None
    return means
