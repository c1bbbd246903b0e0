"""What the layers of a model return, by hooks of the tests' own."""

from typing import Any

import torch
from torch import Tensor, nn


def outputs_of(model: nn.Module, *args: Any) -> dict[tuple[str, int], Tensor]:
    """Run a model; return what each layer returned, by name and number of the call, in the order of the calls."""
    seen: dict[tuple[str, int], Tensor] = {}
    handles = []
    for name, module in model.named_modules():

        def keep(module: nn.Module, args: Any, output: Tensor, name: str = name) -> None:
            # A copy: a layer that follows may work in place.
            seen[name, sum(known == name for known, _ in seen)] = output.clone()

        handles.append(module.register_forward_hook(keep))
    with torch.no_grad():
        model(*args)
    for handle in handles:
        handle.remove()
    return seen
