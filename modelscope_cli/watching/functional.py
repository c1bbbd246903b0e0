"""Losses whose derivatives a script takes by a function of torch: `torch.autograd.grad` and `torch.func.grad`."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from modelscope_cli.hooks.torch_private import graph_leaves, is_transformed, left_alone_by_compiler
from modelscope_cli.watching.error_isolation import replaced

See = Callable[[Tensor, list[Tensor]], object]


def is_by_all_leaves(loss: Any, inputs: Sequence[Any]) -> bool:
    """Tell whether derivatives are taken by all leaves of a loss: its parameters; an attack leaves those out."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        return False
    return {id(leaf) for leaf in graph_leaves(loss)} == {id(one) for one in inputs} != set()


@contextmanager
def shown_gradients(leaves: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Iterator[None]:
    """Hold derivatives in `.grad` while open, as a backward pass leaves them."""
    shown = [one for one in zip(leaves, gradients, strict=True) if one[0].grad is None]
    for leaf, gradient in shown:
        leaf.grad = None if gradient is None else gradient.detach()
    try:
        yield
    finally:
        for leaf, _ in shown:
            leaf.grad = None


def watched_transforms(is_ours: Callable[[], bool], see: See) -> AbstractContextManager[None]:
    """Observe the outermost calls of what `torch.func.grad` and `grad_and_value` return, while open.

    Args:
        see: called with the loss and leaves that share the memory of the parameters and hold their derivatives.
    """
    grad, grad_and_value = torch.func.grad, torch.func.grad_and_value

    def watched(original: Any, hand_on: Callable[[Any, Any], Any]) -> Any:
        @functools.wraps(original)
        def transform(func: Any, argnums: Any = 0, has_aux: bool = False) -> Any:
            plain, both = original(func, argnums, has_aux), grad_and_value(func, argnums, has_aux)

            @functools.wraps(plain)
            def derivative(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or is_transformed() or not is_ours():
                    return plain(*args, **kwargs)
                gradients, values = both(*args, **kwargs)
                by = [args[n] for n in ((argnums,) if isinstance(argnums, int) else argnums)]
                inputs, derivatives = pytree.tree_leaves(by), pytree.tree_leaves(gradients)
                leaves = [x.detach().requires_grad_() for x in inputs]
                with shown_gradients(leaves, derivatives):
                    see((values[0] if has_aux else values).detach(), leaves)
                return hand_on(gradients, values)

            return left_alone_by_compiler(derivative, with_callees=False)

        return left_alone_by_compiler(transform, with_callees=False)

    def without_value(gradients: Any, values: Any) -> Any:
        return (gradients, values[1]) if isinstance(values, tuple) else gradients

    return replaced(
        (torch.func, "grad", watched(grad, without_value)),
        (torch.func, "grad_and_value", watched(grad_and_value, lambda *results: results)),
    )
