"""The columns of `stats` the way one writes them at first, for comparison."""

import torch
from torch import Tensor, nn

N_BINS = 64
NEAR_ZERO = 0.05


def observe_obviously(model: nn.Module, batch: Tensor) -> dict[str, dict[str, object]]:
    """Run one forward with a hook on every leaf layer; return the statistics by the layer's name."""
    rows: dict[str, dict[str, object]] = {}
    handles = [
        module.register_forward_hook(
            lambda module, args, output, name=name: rows.update({name: _row(output)})
        )
        for name, module in model.named_modules()
        if not list(module.children())
    ]
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    return rows


def _row(x: Tensor) -> dict[str, object]:
    return {
        "mean": x.mean().item(),
        "std": x.std(correction=0).item(),
        "min": x.min().item(),
        "max": x.max().item(),
        "rms": x.square().mean().sqrt().item(),
        "zero": (x == 0).float().mean().item(),
        "near_zero": (x.abs() < NEAR_ZERO).float().mean().item(),
        "nan": x.isnan().sum().item(),
        "inf": x.isinf().sum().item(),
        "dead": (x == 0).transpose(0, 1).flatten(1).all(1).sum().item(),
        "histogram": torch.histc(x, N_BINS).tolist(),
    }
