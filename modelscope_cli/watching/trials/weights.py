"""The trial that starts a model from the weights that torch's layers draw by themselves."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from modelscope_cli.watching.trials.roots import Models
from modelscope_cli.watching.trials.change import Act

_LARGEST = 1 << 22  # weights of a layer that is drawn again to compare it


@contextmanager
def default_initialisation(act: Act) -> Iterator[None]:
    """Draw the weights of every layer of torch anew before the first pass with gradients."""

    def reset(root: nn.Module) -> None:
        with torch.random.fork_rng(), torch.no_grad():
            for module in root.modules():
                if is_drawn(module):
                    module.reset_parameters()
                    act()

    with Models(reset).installed():
        yield


def is_drawn(module: nn.Module) -> bool:
    """Tell whether a layer of torch draws its own weights."""
    return callable(getattr(module, "reset_parameters", None)) and type(module).__module__.startswith("torch.nn")


def size_of_weights(root: nn.Module) -> tuple[float, str]:
    """Return how far the size of the weights is from that of a layer as torch makes it, at the layer where it is most.

    The quotient of the root mean squares of the largest weight of the layer: 1 as usual, 20 if twenty times as large, and
    for weights twenty times too small 20 as well; the name of the layer.
    """
    worst, place = 1.0, ""
    with torch.random.fork_rng(), torch.no_grad():
        for name, module in root.named_modules():
            own = [p for p in module.parameters(recurse=False) if p.ndim > 1]
            if not own or not is_drawn(module) or sum(map(torch.numel, own)) > _LARGEST:
                continue
            drawn = copy.deepcopy(module)
            drawn.reset_parameters()
            (key, weight), *_ = [(n, p) for n, p in module.named_parameters(recurse=False) if p.ndim > 1]
            quotient = _rms(weight) / max(_rms(drawn.get_parameter(key)), 1e-12)
            far = max(quotient, 1 / quotient) if quotient > 0 and math.isfinite(quotient) else math.inf
            if far > worst:
                worst, place = far, name
    return worst, place


def _rms(x: torch.Tensor) -> float:
    return float(x.float().square().mean().sqrt())
