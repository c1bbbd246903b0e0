"""Read learning rates off the curve of a range test. Standard library."""

import math
from collections.abc import Sequence

from modelscope_cli.records.lrfind import Suggestion


def suggest(lr: Sequence[float], smoothed: Sequence[float]) -> Suggestion:
    """Return the three usual suggestions; all None where the loss never fell.

    Args:
        lr: rising. smoothed: finite, as long.

    Steepest, not looked for behind the minimum, and minimum / 10 are those of fastai's `lr_find`; so is valley: the
    longest falling subsequence of the losses, two thirds along it.
    """
    if len(smoothed) < 3 or min(smoothed[1:]) >= smoothed[0]:
        return Suggestion(None, None, None)
    low = min(range(len(smoothed)), key=smoothed.__getitem__)
    slopes = [
        (smoothed[i + 1] - smoothed[i - 1]) / (math.log(lr[i + 1]) - math.log(lr[i - 1]))
        for i in range(1, max(min(low + 1, len(lr) - 1), 2))
    ]
    steepest = 1 + min(range(len(slopes)), key=slopes.__getitem__)
    return Suggestion(lr[steepest], lr[_valley(smoothed)], lr[low] / 10)


def _valley(losses: Sequence[float]) -> int:
    """Return the place two thirds down the longest strictly falling subsequence; of several, the first to end."""
    length, before = [1] * len(losses), [-1] * len(losses)
    for i, loss in enumerate(losses):
        for j in range(i):
            if losses[j] > loss and length[j] >= length[i]:
                length[i], before[i] = length[j] + 1, j
    end = max(range(len(losses)), key=length.__getitem__)
    path = [end]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    path.reverse()
    return path[min(2 * len(path) // 3, len(path) - 1)]
