"""Faults in the autograd graph of a hand-written loss: a sum over many values, shapes that were broadcast."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from modelscope_cli.hooks.torch_private import factor_of, output_shape_of
from modelscope_cli.records.watch import BROADCAST, NEGATED, SUMMED, WRONG_SIGN

_NEAR = 16  # nodes of the graph behind the loss
_MANY = 64  # nodes searched for a sum of shares
_BY_PLACE = {"Mul", "Add", "Sub", "Div", "Exp", "Log", "ToCopy", "Clone", "Alias", "Unsqueeze", "Expand"}
_ROWS_KEPT = {"Squeeze", "Split", "SplitWithSizes", "Slice", "Chunk", "ToCopy", "Clone", "Mul", "Div", "Add"}
_OF_ROWS = {"Addmm", "Mm"}  # linear layers, with one row a sample
_SHARES, _SUMS = {"Softmax", "LogSoftmax"}, {"Sum", "Logsumexp"}
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
_WRONG = {(kind, True) for kind in _TO_BE_SMALL} | {(kind, False) for kind in _TO_BE_LARGE}
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
_MANY_TERMS = 8  # fewer may be the parts of one loss, such as those of boxes and classes


def faults_of(loss: Tensor) -> Iterator[tuple[str, str]]:
    """Yield `(kind, message)` of likely faults in a hand-written scalar loss."""
    if (n := summed_over(loss)) > 1:
        yield SUMMED, f"the loss is a sum over {n:,} values, so its gradients are that many times larger"
    if has_wrong_sign(loss):
        yield WRONG_SIGN, "each step increases the value that it should decrease"
    if has_negative_part(loss):
        yield NEGATED, "a criterion is subtracted from the loss"
    if (shapes := broadcast_in(loss)) is not None:
        prediction, difference = shapes
        message = (
            f"a prediction of shape {prediction} is compared with a target "
            f"and broadcast: the difference has {difference}"
        )
        yield BROADCAST, message


def summed_over(loss: Tensor) -> int:
    """Return the number of values that a loss sums; 1 if it is not a sum, or one of a few terms."""
    node = loss.grad_fn
    if node is None or node.name() not in ("SumBackward0", "SumBackward1") or not node.next_functions:
        return 1
    shape = output_shape_of(node.next_functions[0][0])
    n = math.prod(shape) if shape is not None else 1
    return n if n >= _MANY_TERMS else 1


def broadcast_in(loss: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shapes of a prediction and of its difference from the target, if broadcasting enlarged that.

    The prediction has a dimension of 1 where the difference has one entry a sample: (n, 1) against (n).
    """
    nodes: deque[Any] = deque([loss.grad_fn] if loss.grad_fn is not None else [])
    for _ in range(_NEAR):
        if not nodes:
            return None
        node = nodes.popleft()
        inputs = [other for other, _ in node.next_functions if other is not None]
        if node.name() in _DIFFERENCES and len(inputs) == 1:  # the target needs no gradient
            difference, prediction = output_shape_of(node), output_shape_of(inputs[0])
            if difference is not None and prediction is not None and _is_square(prediction, difference):
                return prediction, difference
        nodes.extend(inputs)
    return None


def shares_of_rows_in(loss: Tensor) -> str | None:
    """Describe a softmax over the rows of a batch that weights a sum over the columns; None without one.

    The rows are those of a linear layer's output. Attention over rows would end in a sum over rows, and the
    components of a mixture are in the columns.
    """
    queue: deque[tuple[Any, bool]] = deque([(loss.grad_fn, False)] if loss.grad_fn is not None else [])
    for _ in range(_MANY):
        if not queue:
            return None
        node, is_summed = queue.popleft()
        kind, shape, dim = _kind_of(node), output_shape_of(node) or (), _dim_of(node)
        inputs = [other for other, _ in node.next_functions if other is not None]
        input_shape = (output_shape_of(inputs[0]) if inputs else None) or ()
        if kind in _SHARES and is_summed and len(shape) == 2 and dim == 0 and shape[0] != shape[1] > 1:
            if _is_of_rows(inputs[0], shape[0]):
                return (
                    f"the softmax of scores of shape {shape} sums to 1 over dimension 0, the samples, but "
                    f"the weighted values are summed over dimension 1"
                )
        elif kind in _SUMS:
            if len(input_shape) != 2 or dim != 1:
                continue
            is_summed = True
        elif kind not in _BY_PLACE:
            is_summed = False
        queue += [(other, is_summed) for other in inputs]
    return None


def _is_of_rows(node: Any, rows: int) -> bool:
    """Tell whether a tensor comes from a linear layer of as many rows, without an operation that moves them.

    A layer sees a list of items in each row as that many rows.
    """
    for _ in range(_NEAR):
        shape = output_shape_of(node)
        if node is None or shape is None or shape[0] != rows:
            return False
        kind = _kind_of(node)
        if kind in _OF_ROWS:
            return any(_is_weight(other) for other, _ in node.next_functions)
        node = next((other for other, _ in node.next_functions if other is not None), None)
        is_list = kind in ("View", "UnsafeView") and len(shape) == 3
        if is_list and output_shape_of(node) == (rows * shape[1], shape[2]):
            rows *= shape[1]
        elif kind not in _ROWS_KEPT:
            return False
    return False


def _is_weight(node: Any) -> bool:
    return node is not None and _kind_of(node) == "T" and hasattr(node.next_functions[0][0], "variable")


def _dim_of(node: Any) -> int | None:
    """Return the single dimension saved in a node of a matrix; -1 is saved as 2**64 - 1."""
    saved = getattr(node, "_saved_dim", None)
    dims = saved if isinstance(saved, tuple | list) else [saved]
    return dims[0] % 2 if len(dims) == 1 and isinstance(dims[0], int) else None


def _kind_of(node: Any) -> str:
    return node.name().lstrip("_").partition("Backward")[0]


def has_wrong_sign(loss: Tensor) -> bool:
    """Tell whether a loss is the negative of a criterion, or a log-probability without a minus sign."""
    terms = _terms_of(loss)
    return len(terms) == 1 and terms[0] in _WRONG


def has_negative_part(loss: Tensor) -> bool:
    """Tell whether one of several terms of a loss is the negative of a criterion."""
    terms = _terms_of(loss)
    return len(terms) > 1 and any(kind in _TO_BE_SMALL and is_negated for kind, is_negated in terms)


def _terms_of(loss: Tensor) -> list[tuple[str, bool]]:
    """Return the terms of a loss, `(kind of operation, is_negated)`; empty if there are too many.

    Means, sums, views, constant factors, minus signs, additions and subtractions are followed.
    """
    nodes: deque[tuple[Any, bool]] = deque([(loss.grad_fn, False)] if loss.grad_fn is not None else [])
    terms: list[tuple[str, bool]] = []
    for _ in range(_NEAR):
        if not nodes:
            return terms
        node, is_negated = nodes.popleft()
        kind = _kind_of(node)
        sign = None if kind in _TO_BE_SMALL | _TO_BE_LARGE else _sign_of(node, kind)
        if sign is None:
            terms.append((kind, is_negated))
            continue
        for n, (other, _) in enumerate(node.next_functions):
            if other is not None:
                nodes.append((other, is_negated ^ (sign < 0 or (kind == "Sub" and n == 1))))
    return []


def _sign_of(node: Any, kind: str) -> int | None:
    """Return 1 or -1 for an operation that keeps or changes the sign, None for any other."""
    if kind in ("Neg", "Rsub"):
        return -1
    if kind in _PLAIN or kind in ("Add", "Sub"):
        return 1
    factor = factor_of(node) if kind in ("Mul", "Div") else None
    return None if factor is None else (-1 if factor < 0 else 1)


def _is_square(prediction: tuple[int, ...], difference: tuple[int, ...]) -> bool:
    return (
        len(prediction) == len(difference) == 2
        and prediction[0] == difference[0] == difference[1] > 1
        and prediction[1] == 1
    )
