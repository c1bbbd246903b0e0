"""Faults in the autograd graph of a hand-written loss: sums, shapes that were broadcast, wrong signs."""

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from modelscope_cli.hooks.torch_private import factor_of, output_shape_of, saved_in

_NEAR = 16  # nodes of the graph behind the loss
_MANY = 64  # nodes searched for a sum of shares
_MOST = 2048  # nodes searched for terms
_BY_PLACE = {"Mul", "Add", "Sub", "Div", "Exp", "Log", "ToCopy", "Clone", "Alias", "Unsqueeze", "Expand"}
_ROWS_KEPT = {"Squeeze", "Split", "SplitWithSizes", "Slice", "Chunk", "ToCopy", "Clone", "Mul", "Div", "Add"}
_OF_ROWS = {"Addmm", "Mm"}  # linear layers, with one row a sample
_ELEMENTWISE = _BY_PLACE | {"Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "NativeDropout"}
_SHARES, _SUMS = {"Softmax", "LogSoftmax"}, {"Sum", "Logsumexp"}
_CROSS_ENTROPIES = {"NllLoss", "NllLoss2D", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"}
_TO_BE_SMALL = _CROSS_ENTROPIES | {"MseLoss", "SmoothL1Loss", "HuberLoss"}
_TO_BE_LARGE = {"LogSoftmax", "LogSigmoid"}
_SCORES = *_TO_BE_LARGE, "Overlap", "Cosine"
_WRONG = {(kind, True) for kind in _TO_BE_SMALL} | {(kind, False) for kind in _SCORES}
# Of labels, and of a normal distribution
_LIKELIHOODS = {"LogSoftmax", "Logsumexp", "NllLoss", "BinaryCrossEntropyWithLogits", "Pow"}
_KEPT = ("Clone", "Expand", "ClampMin")
_PROBABILITIES = ("Sigmoid", "Softmax")
_PLAIN = {"Add", "Sub", "Mean", "Sum", "ToCopy", "Clone", "Alias", "Cat", "Stack"}
_PLAIN |= {"View", "UnsafeView", "Squeeze", "Unsqueeze", "Gather", "Index", "Select"}
# From a weight to a log-probability
_FOLLOWED = _PLAIN | {"Neg", "Rsub", "Mul", "Div", "Exp", "Clamp"}
_ADDED = {"Add", "Sub", "Rsub", "Mul", "Sum", "Mean", "Pow"}
_MOVED = {"View", "UnsafeView", "Slice", "Select", "Squeeze", "Transpose", "Permute", "Clone"}
_DIFFERENCES = ("SubBackward0", "RsubBackward0")
_MANY_TERMS = 8  # fewer may be the parts of one loss, such as those of boxes and classes


class Term(NamedTuple):
    """A term of a sum: a node of the graph, the number of its output, and the product of its scalar factors."""

    node: Any
    number: int
    kind: str
    factor: float

    @property
    def edge(self) -> tuple[Any, int]:
        return self.node, self.number


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
            difference = output_shape_of(node)
            n = difference[0] if difference else 0
            if n > 1 and difference == (n, n) and output_shape_of(inputs[0]) == (n, 1):
                return (n, 1), (n, n)
        nodes.extend(inputs)
    return None


def shares_of_rows_in(loss: Tensor) -> str | None:
    """Describe a softmax over the rows of a batch that weights a sum over the columns; None without one.

    The rows are those of a linear layer's output. Attention over rows would end in a sum over rows, and the
    components of a mixture are in the columns. Also features that are divided by their norm over the rows, or
    have such a softmax, and enter a linear layer.
    """
    queue: deque[tuple[Any, bool]] = deque([(loss.grad_fn, False)] if loss.grad_fn is not None else [])
    entering: set[Any] = set()  # nodes whose rows enter a linear layer
    for _ in range(_MANY):
        if not queue:
            return None
        node, is_summed = queue.popleft()
        kind, shape, dim = _kind_of(node), output_shape_of(node) or (), _dim_of(node)
        inputs = [other for other, _ in node.next_functions if other is not None]
        input_shape = (output_shape_of(inputs[0]) if inputs else None) or ()
        is_over_rows = kind in _SHARES and len(shape) == 2 and dim == 0
        if is_over_rows and is_summed and shape[0] != shape[1] > 1 and _is_of_rows(inputs[0], shape[0]):
            return (
                f"the softmax of scores of shape {shape} sums to 1 over dimension 0, the samples, but "
                f"the weighted values are summed over dimension 1"
            )
        if node in entering:
            is_scaled = is_over_rows or (kind == "Div" and _is_norm_of_rows(inputs[-1]))
            if is_scaled and len(shape) == 2 and _is_of_rows(inputs[0], shape[0]):
                return f"features of shape {shape} are scaled by what is summed over dimension 0, the samples"
            if kind in _ELEMENTWISE:
                entering.update(inputs)
        elif kind in _OF_ROWS and any(map(_is_weight, inputs)):
            entering.update(other for other in inputs if not _is_weight(other))
        if kind in _SUMS:
            if len(input_shape) != 2 or dim != 1:
                continue
            is_summed = True
        elif kind not in _BY_PLACE:
            is_summed = False
        queue += [(other, is_summed) for other in inputs]
    return None


def _is_norm_of_rows(node: Any) -> bool:
    """Tell whether a divisor is a norm over the first dimension of a matrix."""
    while node is not None and _kind_of(node) in _KEPT:
        node = node.next_functions[0][0]
    return node is not None and _kind_of(node) == "LinalgVectorNorm" and _dim_of(node) == 0


def _is_of_rows(node: Any, rows: int) -> bool:
    """Tell whether a tensor comes from a linear layer of as many rows, without an operation that moves them.
    A layer sees a list of items in each row as that many rows."""
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
        elif kind not in _ROWS_KEPT | _ELEMENTWISE:
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


def wrong_factor(terms: Sequence[Term]) -> float | None:
    """Return the factor of a loss that its steps make worse, such as -1 of a criterion; None for any other.

    All terms are the negative of a criterion or of a divergence, or a log-probability, an overlap or a cosine
    without a minus sign.
    """
    if (divergence := divergence_in(terms)) is not None and divergence[0] < 0:
        return divergence[0]
    kinds = {(_score_of(term.node) or term.kind, term.factor < 0) for term in terms}
    is_weighted = len({term.factor for term in terms}) > 1 and terms[0].kind in _TO_BE_LARGE  # by rewards
    return terms[0].factor if len(kinds) == 1 and kinds <= _WRONG and not is_weighted else None


def has_negative_part(terms: Sequence[Term]) -> bool:
    """Tell whether one of several terms of a loss is the negative of a criterion."""
    return len(terms) > 1 and any(term.kind in _TO_BE_SMALL and term.factor < 0 for term in terms)


def terms_from(node: Any, number: int = 0) -> list[Term]:
    """Return the terms of a sum; empty if there are too many.

    Means, sums, views, constant factors, minus signs, additions, subtractions and picks are followed.
    """
    edges: deque[tuple[Any, int, float]] = deque([(node, number, 1.0)] if node is not None else [])
    terms: list[Term] = []
    for _ in range(_MOST):
        if not edges:
            return terms
        node, number, factor = edges.popleft()
        kind = _kind_of(node)
        own = None if kind in _TO_BE_SMALL | _TO_BE_LARGE else _factor_of(node, kind)
        if own is None:
            terms.append(Term(node, number, kind, factor))
            continue
        for n, (other, number) in enumerate(node.next_functions):
            if other is not None:
                edges.append((other, number, factor * (-own if kind == "Sub" and n == 1 else own)))
    return []


def _factor_of(node: Any, kind: str) -> float | None:
    """Return the factor of a linear operation, None for any other; of a mean and a quotient only its sign."""
    if kind in ("Neg", "Rsub"):
        return -1.0
    if kind in _PLAIN:
        return 1.0
    factor = factor_of(node) if kind in ("Mul", "Div") else None
    return math.copysign(1.0, factor) if factor and kind == "Div" else factor


def _inputs(node: Any) -> list[tuple[Any, int]]:
    return [edge for edge in node.next_functions if edge[0] is not None]


def _nodes_behind(node: Any, among: Collection[str]) -> list[Any]:
    """Return a node and those behind it, through operations of some kinds."""
    nodes = {node: None}
    waiting = deque(nodes)
    while waiting and len(nodes) < _MANY:
        node = waiting.popleft()
        if _kind_of(node) in among:
            others = [other for other, _ in _inputs(node) if other not in nodes]
            nodes |= dict.fromkeys(others)
            waiting += others
    return list(nodes)


def _score_of(node: Any) -> str | None:
    """Name a score that is to be large: an overlap, or the cosine to a constant; None for any other node."""
    inputs = _inputs(node)
    if _kind_of(node) == "Mul" and len(inputs) == 1 and _kind_of(inputs[0][0]) == "Div":
        norm = _nodes_behind(_inputs(inputs[0][0])[-1][0], _KEPT)
        return "Cosine" if "LinalgVectorNorm" in map(_kind_of, norm) else None
    return "Overlap" if _is_overlap(node) else None


def _is_overlap(node: Any) -> bool:
    """Tell whether a node is a Dice, Jaccard or Tversky score of probabilities: `2 (p t) / (p + t)`."""
    if _kind_of(node) != "Div" or len(_inputs(node)) != 2:
        return False
    above, below = (_nodes_behind(other, _ADDED) for other, _ in _inputs(node))
    products = [one for one in above if _kind_of(one) == "Mul" and len(_inputs(one)) == 1]
    is_doubled = any(factor_of(one) == 2 for one in products)
    for one in products:
        ((probability, _),) = _inputs(one)
        is_of_both = one in below or (is_doubled and probability in below)
        kinds = map(_kind_of, _nodes_behind(probability, _MOVED))
        if is_of_both and factor_of(one) is None and any(kind in _PROBABILITIES for kind in kinds):
            return True
    return False


def divergence_in(terms: Sequence[Term]) -> tuple[float, Tensor] | None:
    """Return the factor of KL(N(mean, std) || N(0, 1)) in a loss, and its value for a sample in nats.

    It is a sum over mean^2 + variance - log(variance), where the variance is exp(log-variance) or a square.
    """
    squares = [term for term in terms if term.kind == "Pow"]
    for term in terms:
        if term.kind == "Exp":  # of the log-variance, a term of its own
            variance = saved_in(term.node, "result")
            behind = {one.edge for one in terms_from(*_inputs(term.node)[0])}
            logarithms = [one for one in terms if one.edge in behind]
        elif term.kind == "Pow":  # of the standard deviation, whose logarithm is a term
            variance = None if (x := saved_in(term.node, "self")) is None else x.square()
            inner = _inputs(term.node)[0]
            logarithms = [
                one for one in terms if one.kind == "Log" and _inputs(one.node)[0] in (inner, term.edge)
            ]
            scale = saved_in(inner[0], "other") if _kind_of(inner[0]) == "Div" else None
            if scale is not None and not (scale == 1).all():
                continue  # from another distribution
        else:
            continue
        sign = math.copysign(1, term.factor)  # a weight may be 0
        if variance is None or not any(math.copysign(1, one.factor) == -sign for one in logarithms):
            continue
        for square in squares:
            mean = saved_in(square.node, "self")
            is_pair = square is not term and math.isclose(square.factor, term.factor)
            if is_pair and mean is not None and mean.ndim and mean.shape == variance.shape:
                with torch.no_grad():
                    return term.factor, (mean**2 + variance - 1 - variance.log()).sum() / 2 / len(mean)
    return None


def is_latent_cut_off(terms: Sequence[Term]) -> bool:
    """Tell whether no criterion in a loss has a gradient to the mean of which its KL divergence has the square."""
    means = {edge[0] for term in terms if term.kind == "Pow" for edge in _inputs(term.node)}
    waiting = deque(term.node for term in terms if term.kind in _TO_BE_SMALL)
    seen = set(waiting)
    while waiting and len(seen) < _MOST and not means & seen:
        others = {other for other, _ in _inputs(waiting.popleft())} - seen
        seen |= others
        waiting += others
    return bool(seen) and not waiting and not means & seen


def has_weighted_likelihoods(terms: Sequence[Term]) -> bool:
    """Tell whether log-probabilities in a loss have weights, such as the advantages of a policy gradient."""
    factors = {term.factor for term in terms if term.kind in _LIKELIHOODS}
    products = [term.node for term in terms if term.kind == "Mul" and len(_inputs(term.node)) == 1]
    kinds = {_kind_of(one) for node in products for one in _nodes_behind(node, _FOLLOWED)}
    return len(factors) >= _MANY_TERMS or not kinds.isdisjoint(_LIKELIHOODS)
