"""Which of the marks of a step that went wrong is named; see `finite_flags`."""

import math
from collections.abc import Sequence

import torch

from modelscope_cli.records.training_facts import GRADIENT, LOSS, PARAMETER, Birth
from modelscope_cli.watching.model_registry import WatchedModel


def find_birth(
    own: Sequence[WatchedModel], others: Sequence[WatchedModel], step: int, loss: float | None
) -> Birth | None:
    """Return what was not finite first in a step whose loss or gradients are not, None where all are.

    Args:
        own: the models whose weights the step changes; `others`: those through which its loss may have gone.
        loss: of the step; None where it was not seen.
    """
    is_loss_finite = loss is None or math.isfinite(loss)
    spoilt = {model.label: names for model in own if (names := _spoilt(model))}
    if is_loss_finite and not spoilt:
        return None
    for model in (*own, *others):
        mark = model.flags.first()
        if mark is not None and mark.what == PARAMETER:
            return Birth(PARAMETER, max(step - 1, 0), model.label, mark.name, 0)
        if mark is not None:
            return Birth(mark.what, step, model.label, mark.name, mark.call)
    if not is_loss_finite:
        seen = [model for model in (*own, *others) if model.flags.has_outputs]
        return Birth(LOSS, step, seen[0].label, "", 0) if seen else None
    model = next(one for one in own if one.label in spoilt)
    return Birth(GRADIENT, step, model.label, model.flags.nearest_to_loss(spoilt[model.label]), 0)


def _spoilt(model: WatchedModel) -> list[str]:
    """Return the parameters whose gradient was not finite, and that are not either now that it was applied.

    A script may have mended its gradients before the step.
    """
    names, root = model.flags.spoilt_gradients(), model.root()
    if not names or root is None:
        return []
    held = dict(root.named_parameters())
    is_broken = any(name in held and not bool(torch.isfinite(held[name]).all()) for name in names)
    return names if is_broken else []
