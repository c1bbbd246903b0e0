"""Which layers take part in a forward by their parameters, called or not."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.records.grads import ParameterGradient
from modelscope_cli.records.naming import layer_of


def every_output(output: Any) -> Tensor:
    """A loss that all outputs enter, so that what one of them depends on gets a gradient."""
    tensors = [tensor for _, tensor in tensors_in(output) if tensor.requires_grad]
    return torch.stack([tensor.abs().mean() for tensor in tensors]).sum()


def used_layers(model: nn.Module, rows: Iterable[ParameterGradient]) -> frozenset[str]:
    """Return the layers of whose own parameters one got a gradient, and those around them.

    `F.linear(x, self.proj.weight)` uses `proj` without calling it, and a weight that is tied to another layer's
    takes part there.
    """
    parameters = dict(model.named_parameters())
    used = {id(parameters[row.name]) for row in rows if row.mark not in ("unused", "frozen")}
    names = {
        layer_of(name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) in used
    }
    paths = [name.split(".") for name in names]
    return frozenset(".".join(path[:n]) for path in paths for n in range(1, len(path) + 1))
