"""What the graph of a loss shows that was computed by hand: a sum over many values, shapes that were broadcast."""

from collections import deque
from typing import Any

from torch import Tensor

from modelscope_cli.hooks.torch_private import output_shape_of

_NEAR = 16  # nodes of the graph behind the loss
_DIFFERENCES = ("SubBackward0", "RsubBackward1")


def summed_over(loss: Tensor) -> int:
    """Return over how many values a loss is a sum, 1 where it is none."""
    node = loss.grad_fn
    if node is None or node.name() not in ("SumBackward0", "SumBackward1") or not node.next_functions:
        return 1
    shape = output_shape_of(node.next_functions[0][0])
    return _count(shape) if shape is not None else 1


def broadcast_in(loss: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shape of a prediction and of the difference from its target, where that is far larger.

    The prediction has a dimension of 1 where the difference has as many as there are samples: (n, 1) against (n).
    """
    nodes: deque[Any] = deque([loss.grad_fn] if loss.grad_fn is not None else [])
    for _ in range(_NEAR):
        if not nodes:
            return None
        node = nodes.popleft()
        inputs = [other for other, _ in node.next_functions if other is not None]
        if node.name() in _DIFFERENCES and len(inputs) == 1:  # the target needs no gradient
            made, given = output_shape_of(node), output_shape_of(inputs[0])
            if made is not None and given is not None and _is_square(given, made):
                return given, made
        nodes.extend(inputs)
    return None


def _is_square(given: tuple[int, ...], made: tuple[int, ...]) -> bool:
    return len(given) == len(made) == 2 and given[0] == made[0] == made[1] > 1 and given[1] == 1


def _count(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n
