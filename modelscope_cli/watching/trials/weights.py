"""The trial that starts a model from the weights that torch's layers draw by themselves."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from modelscope_cli.watching.trials.change import Act
from modelscope_cli.watching.trials.roots import Models

_LARGEST = 1 << 22  # weights of a layer that is drawn again to compare it


@contextmanager
def default_initialisation(act: Act) -> Iterator[None]:
    """Draw the weights of every layer of torch anew before the first pass with gradients."""

    def draw(root: nn.Module) -> None:
        with torch.random.fork_rng(), torch.no_grad():
            for module in root.modules():
                if is_drawn(module):
                    reset: Any = module.reset_parameters
                    reset()
                    act()

    with Models(draw).installed():
        yield


def is_drawn(module: nn.Module) -> bool:
    """Tell whether a layer of torch draws its own weights."""
    return callable(getattr(module, "reset_parameters", None)) and type(module).__module__.startswith(
        "torch.nn"
    )


def size_of_weights(root: nn.Module) -> tuple[float, str]:
    """Return how far the weights of a layer are from those that torch draws, and its name, where that is most.

    The quotient of the root mean squares: 1 as usual, 20 if they are twenty times as large or as small.
    """
    worst, place = 1.0, ""
    with torch.random.fork_rng(), torch.no_grad():
        for name, module in root.named_modules():
            own = [p for p in module.parameters(recurse=False) if p.ndim > 1]
            if not own or not is_drawn(module) or sum(map(torch.numel, own)) > _LARGEST:
                continue
            drawn: Any = copy.deepcopy(module)
            drawn.reset_parameters()
            (key, weight), *_ = [(n, p) for n, p in module.named_parameters(recurse=False) if p.ndim > 1]
            quotient = _rms(weight) / max(_rms(drawn.get_parameter(key)), 1e-12)
            far = max(quotient, 1 / quotient) if quotient > 0 and math.isfinite(quotient) else math.inf
            if far > worst:
                worst, place = far, name
    return worst, place


def _rms(x: torch.Tensor) -> float:
    return float(x.float().square().mean().sqrt())
