"""Trials that change gradients between the backward pass and the step, and the sign of the loss."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from modelscope_cli.watching.clipping import of_clipping
from modelscope_cli.watching.error_isolation import around_steps, replaced
from modelscope_cli.watching.parameters import parameters_of
from modelscope_cli.watching.trials.change import Act

_clip_grad_norm = torch.nn.utils.clip_grad_norm_


def unclipped(act: Act) -> AbstractContextManager[None]:
    """Let torch's functions clip nothing; the norm that they return is the same."""

    def by_norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        act()
        return _clip_grad_norm(parameters, float("inf"), *args, **kwargs)

    def by_value(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
        act()

    return replaced(*of_clipping(by_norm, by_value))


@contextmanager
def cleared(act: Act) -> Iterator[None]:
    """Clear the gradients by which an optimizer has stepped before the next backward pass."""
    used: list[Optimizer] = []
    backward = torch.autograd.backward

    def clearing(*args: Any, **kwargs: Any) -> Any:
        for optimizer in used:
            for parameter in parameters_of(optimizer):
                if parameter.grad is not None:
                    parameter.grad = None
                    act()
        used.clear()
        return backward(*args, **kwargs)

    after = around_steps(end=lambda one, *_: used.append(one))
    with after, replaced((torch.autograd, "backward", clearing)):
        yield


def sign_exchanged(act: Act) -> AbstractContextManager[None]:
    """Run each backward pass on the negative of the loss."""
    backward = torch.autograd.backward

    def negated(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        act()
        several = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
        return backward(tuple(-one for one in several), *args, **kwargs)

    return replaced((torch.autograd, "backward", negated))
