"""Layer-sequential unit-variance initialisation."""

from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call, HookSession, Observer

_TOLERANCE, _MOST_TRIES = 0.1, 10


class _Deviation(Observer):
    """The standard deviation of one layer's first output, and the order in which layers run."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.std = 0.0

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self.order.append(call.name)
        self.std = float(tensors_in(output)[0][1].float().std())


def init_lsuv(model: nn.Module, layers: dict[str, nn.Module], inputs: Tensor) -> None:
    """Scale the weight of each layer, first to last, until its output on `inputs` has unit variance.

    D. Mishkin, J. Matas, "All you need is a good init" (2016), algorithm 1: orthonormal weights, set by the
    caller, then `W /= sqrt(Var(B))` until `|Var(B) - 1| < 0.1`, ten times at most. Runs in train mode; buffers
    and random state are restored.
    """
    seen = _Deviation()
    with HookSession(model, [seen], names=frozenset(layers), is_training=True) as session:
        session.run((inputs,))
    for name in dict.fromkeys(seen.order):
        for _ in range(_MOST_TRIES):
            observer = _Deviation()
            wanted = frozenset({(name, 0)})
            with HookSession(model, [observer], wanted=wanted, is_training=True) as session:
                session.run((inputs,))
            if abs(observer.std**2 - 1) < _TOLERANCE or not observer.std > 0:
                break
            with torch.no_grad():
                layers[name].get_parameter("weight").div_(observer.std)
