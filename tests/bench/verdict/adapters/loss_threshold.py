"""A baseline: the loss is NaN or infinite at the end, or not below a share of what it was at first."""

import math
import runpy
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import torch

SHARE = 0.8  # set by hand before any run


def judge(command: Sequence[str], ranks: int) -> dict[str, Any]:
    """Collect what `backward` is called on; the mean of the first five against the median of the last ten."""
    losses, backward = [], torch.Tensor.backward

    def noted(self, *args, **kwargs):
        losses.append(self.detach().float().sum().item())
        return backward(self, *args, **kwargs)

    torch.Tensor.backward = noted
    sys.argv = list(command)
    runpy.run_path(command[0], run_name="__main__")
    if len(losses) < 20:
        return {"verdict": "cannot tell", "findings": []}
    first, last = statistics.fmean(losses[:5]), statistics.median(losses[-10:])
    fails = not math.isfinite(last) or last > first - (1 - SHARE) * abs(first)
    return {
        "findings": [{"kinds": [], "step": None, "says": f"loss {first:.3g} to {last:.3g}"}] if fails else []
    }
