"""What the graph of a loss shows that was computed by hand: a sum over many values, shapes that were broadcast."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from modelscope_cli.hooks.torch_private import factor_of, output_shape_of
from modelscope_cli.records.watch import BROADCAST, SUMMED, WRONG_SIGN

_NEAR = 16  # nodes of the graph behind the loss
_TO_BE_SMALL = {
    "NllLoss",
    "NllLoss2D",
    "MseLoss",
    "SmoothL1Loss",
    "HuberLoss",
    "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
}
_TO_BE_LARGE = {"LogSoftmax", "LogSigmoid"}
_PLAIN = {
    "Mean",
    "Sum",
    "View",
    "UnsafeView",
    "Squeeze",
    "Unsqueeze",
    "Gather",
    "Index",
    "ToCopy",
    "Clone",
    "Alias",
}
_DIFFERENCES = ("SubBackward0", "RsubBackward0")


def faults_of(loss: Tensor) -> Iterator[tuple[str, str]]:
    """Give `(kind, message)` of what may well be a mistake in a loss, a lone number, that was computed by hand."""
    if (n := summed_over(loss)) > 1:
        yield SUMMED, f"the loss is a sum over {n:,} values, so its gradients are that many times larger"
    if has_wrong_sign(loss):
        yield WRONG_SIGN, "the steps increase what should decrease"
    if (shapes := broadcast_in(loss)) is not None:
        given, made = shapes
        what = f"a prediction of shape {given} is compared with a target so that the difference has {made}"
        yield BROADCAST, what


def summed_over(loss: Tensor) -> int:
    """Return over how many values a loss is a sum, 1 where it is none."""
    node = loss.grad_fn
    if node is None or node.name() not in ("SumBackward0", "SumBackward1") or not node.next_functions:
        return 1
    shape = output_shape_of(node.next_functions[0][0])
    return math.prod(shape) if shape is not None else 1


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


def has_wrong_sign(loss: Tensor) -> bool:
    """Tell whether a loss is minus something that is to be small, or a logarithm of probabilities without a minus.

    Only what is plain is followed: means, sums, views, constant factors and minus signs, up to what is known.
    """
    node, is_negated = loss.grad_fn, False
    for _ in range(_NEAR):
        if node is None:
            return False
        kind = node.name().lstrip("_").partition("Backward")[0]
        if kind in _TO_BE_SMALL:
            return is_negated
        if kind in _TO_BE_LARGE:
            return not is_negated
        sign = _sign_of(node, kind)
        inputs = [other for other, _ in node.next_functions if other is not None]
        if sign is None or len(inputs) != 1:
            return False
        is_negated ^= sign < 0
        node = inputs[0]
    return False


def _sign_of(node: Any, kind: str) -> int | None:
    """Return 1 or -1 for what keeps or turns a sign, None for anything else."""
    if kind == "Neg":
        return -1
    if kind in _PLAIN:
        return 1
    factor = factor_of(node) if kind in ("Mul", "Div") else None
    return None if factor is None else (-1 if factor < 0 else 1)


def _is_square(given: tuple[int, ...], made: tuple[int, ...]) -> bool:
    return len(given) == len(made) == 2 and given[0] == made[0] == made[1] > 1 and given[1] == 1
