"""How what enters B differs from what enters A: axes, channels, range, mean and standard deviation, precision."""

import itertools
import math

import torch
from torch import Tensor

from modelscope_cli.analysis.comparison.variants import apart
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.records.diff import Cause
from modelscope_cli.records.naming import dtype_name

_FEWEST = 16  # values of a channel, below which a scale and a shift fit anything
_ALIKE = 1e-3  # residual, relative to B, below which a change explains what is there


def of_input(a: Tensor, b: Tensor, preprocessing: Preprocessing | None) -> Cause | None:
    """Explain what enters B by what enters A: axes, channels, range, mean and standard deviation, precision."""
    if a.ndim == 4 and b.shape == a.permute(0, 2, 3, 1).shape != a.shape:
        if apart(a.permute(0, 2, 3, 1), b) < _ALIKE:
            message = "the inputs already differ: B takes them with the channels last"
            return Cause(
                "axis_order", None, message, "give B images as N, H, W, C, or export with channels second"
            )
        b = b.permute(0, 3, 1, 2)
    if a.ndim == 4 and b.shape == a.mT.shape and apart(a.mT, b) < _ALIKE < apart(a, b):
        message = "the inputs already differ: B takes them with height and width exchanged"
        return Cause("axis_order", None, message, "give both images of N, C, H, W")
    if a.shape != b.shape or a.ndim < 3 or a[:, 0].numel() < _FEWEST:
        return None
    n = a.shape[1]
    orders = (
        list(itertools.permutations(range(n))) if n <= 4 else [tuple(range(n)), tuple(reversed(range(n)))]
    )
    fits = [(order, *_fitted(a[:, list(order)], b)) for order in orders]
    order, scale, shift, residual = min(fits, key=lambda fit: fit[3])
    if residual > _ALIKE:
        return None
    if order != tuple(range(n)):
        return other_channels(order, None)
    if (kind := coarse(b)) is not None and coarse(a) is None:
        return Cause("cast", None, f"the inputs already differ: B rounds them to {kind}", "export in float32")
    if (scale - 1).abs().max() < 1e-3 and shift.abs().max() < 1e-3:
        return None  # the same except for what no factor explains
    if scale.std(correction=0) < 1e-3 * scale.abs().mean() and shift.abs().max() < 1e-3:
        message = f"the inputs already differ: those of B are {scale.mean():.4g} times those of A"
        return Cause("input_range", None, message, "scale the inputs of B to the range of those of A")
    text = f"B's are {_listed(scale)} times A's plus {_listed(shift)}, by channel"
    if preprocessing is not None and len(preprocessing.mean) == n:
        mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
        b_std, b_mean = std / scale, mean - shift * std / scale
        text = f"B's mean is {_listed(b_mean)} and its std {_listed(b_std)}, A's {_listed(mean)} and {_listed(std)}"
    message = f"the inputs already differ: another normalisation; {text}"
    return Cause("preprocessing", None, message, "normalise once, with the mean and std of A")


def _fitted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, float]:
    """Fit b = scale * a + shift for every channel; the residual is relative to the spread of b."""
    x = a.detach().cpu().double().transpose(0, 1).flatten(1)
    y = b.detach().cpu().double().transpose(0, 1).flatten(1)
    dx, dy = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    scale = (dx * dy).sum(1) / dx.square().sum(1).clamp_min(1e-30)
    shift = y.mean(1) - scale * x.mean(1)
    left = (scale[:, None] * x + shift[:, None] - y).norm().item()
    return scale.float(), shift.float(), left / max(dy.norm().item(), 1e-30)


def _listed(values: Tensor) -> str:
    return " ".join(f"{value:.3g}" for value in values.tolist()[:4]) + (" ..." if len(values) > 4 else "")


def other_channels(order: tuple[int, ...], layer: str | None) -> Cause:
    named = "blue, green, red" if order == (2, 1, 0) else ", ".join(map(str, order))
    message = f"the inputs already differ: B takes the channels in the order {named}"
    return Cause("channel_order", layer, message, "give A and B the channels in the same order")


def coarse(tensor: Tensor) -> str | None:
    """Return the coarsest type that holds all values; None for none, for few values and those of a fixed step."""
    values = tensor.detach().cpu().float()
    top = values.abs().max().item() if values.unique().numel() > 16 else 0.0
    for dtype in (torch.bfloat16, torch.float16):
        if tensor.dtype == dtype:
            return dtype_name(dtype)
        if 0 < top < math.inf and bool((values.to(dtype).float() == values).all()):
            step = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(top))  # between the largest values
            is_fixed = any(bool((values % one == 0).all()) for one in (step, 1.0))
            return None if is_fixed else dtype_name(dtype)
    return None
