"""A baseline: the norm of all gradients, at some step of an optimizer, is not finite, too large or too small."""

import math
import runpy
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

LOW, HIGH = 1e-6, 100.0  # set by hand before any run


def judge(command: Sequence[str], ranks: int) -> dict[str, Any]:
    """Look at the gradients before every step, whatever optimizer takes it."""
    norms = []

    def note(optimizer, args, kwargs):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms.append(torch.stack([g.detach().float().norm() for g in grads]).norm().item() if grads else 0.0)

    register_optimizer_step_pre_hook(note)
    sys.argv = list(command)
    runpy.run_path(command[0], run_name="__main__")
    for step, norm in enumerate(norms):
        if not math.isfinite(norm) or not LOW <= norm <= HIGH:
            return {"findings": [{"kinds": [], "step": step, "says": f"gradient norm {norm:.3g}"}]}
    return {"findings": []} if norms else {"verdict": "cannot tell", "findings": []}
