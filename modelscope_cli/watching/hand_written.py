"""What the functions between the outputs of models and a loss tell, also of a loss that is written by hand."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.hooks import torch_private
from modelscope_cli.records.naming import percent

_PASSING = re.compile(
    r"(Unsafe)?(View|ReshapeAlias|Squeeze|Unsqueeze|ToCopy|Clone|Alias|T|Transpose|Permute|Expand)Backward\d"
)
_MADE_BY = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Relu": "relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Hardtanh": "hardtanh",
    "Add": "sum",
    "Sub": "sum",
}
JOINED = "cat"
_MOST_NODES = 8  # views and casts between the criterion and the operation that computed its input
Call = tuple[Any, Any, Any, Any]  # a function, its arguments, its keywords, its output
_NEVER, _FEWEST = 0.1, 8  # share of the variance of the targets that is out of reach; targets
_SUM, _LEAST = 1e-3, 1e-12  # distance of a sum of probabilities from 1; a probability above 0
_REACH = {"relu": (0.0, None), "sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "hardtanh": (-1.0, 1.0)}
_PICKING, _SUBTRACTING = {"gather", "take_along_dim", "__getitem__"}, {"sub", "rsub", "__rsub__"}
_ACROSS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "cdist", "einsum"}  # compare each row with all


def tensors_of(value: Any) -> list[Tensor]:
    return [leaf for leaf in torch_private.leaves_of(value) if isinstance(leaf, Tensor)]


def name_of(call: Call) -> str:
    return getattr(call[0], "__name__", "")


def labels_in(calls: Sequence[Call], derived: Container[int]) -> tuple[Tensor, Tensor] | None:
    """Return scores of shape `(N, C)` and the N labels that pick one of each row; None without any.

    By `gather`, by indices, or by a product with rows that sum to 1, such as one-hot or smoothed labels; not by
    what is `derived`, such as the place of the largest score. Actions are none: their factors have both signs.
    """
    factors = [x for one in calls if name_of(one) == "mul" for x in tensors_of(one[1:3])]
    if any(id(x) not in derived and x.numel() and x.min() < 0 < x.max() for x in factors):
        return None
    for call in calls:
        tensors = tensors_of(call[1:3])
        scores = [x for x in tensors if id(x) in derived and x.ndim == 2]
        given = [x for x in tensors if id(x) not in derived]
        if not (scores and given):
            continue
        x, labels = scores[0], given[-1]
        if name_of(call) == "mul" and labels.shape == x.shape and _are_shares(labels.float()):
            return x, labels.argmax(1)
        if name_of(call) in _PICKING and labels.dtype == torch.int64 and labels.numel() == len(x):
            labels = labels.reshape(-1)
            if torch.equal(x.gather(1, labels[:, None])[:, 0], call[3].reshape(-1)):
                return x, labels
    return None


def _are_shares(x: Tensor) -> bool:
    return x.ndim == 2 and x.shape[1] > 1 and bool(((x.sum(1) - 1).abs() < _SUM).all() and (x >= 0).all())


def log_probabilities(scores: Tensor) -> Tensor | None:
    """Return scores as logarithms of probabilities; None if they are neither these nor probabilities."""
    every = scores, -scores, scores.clamp_min(_LEAST).log()
    return next((one for one in every if _are_shares(one.exp())), None)


def activation_of(x: Tensor) -> str | None:
    """Return the operation that computed a tensor, ignoring views and casts, and the scaling of joined scores."""
    node, is_scaled = x.grad_fn, False
    for _ in range(_MOST_NODES):
        if node is None:
            return None
        name = node.name().lstrip("_")
        kind = name.partition("Backward")[0]
        if kind == "Cat":
            return JOINED
        if kind in ("Div", "Mul"):
            is_scaled = True
        elif not _PASSING.fullmatch(name):
            return None if is_scaled else _MADE_BY.get(kind)
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def out_of_reach(one: Tensor, other: Tensor) -> str | None:
    """Describe targets out of the range of the activation that computed the tensor they are compared with."""
    for x, target in ((one, other), (other, one)):
        kind, t = activation_of(x), target.detach().float()
        if kind not in _REACH or x.shape != t.shape or target.requires_grad or t.numel() < _FEWEST:
            continue
        low, high = _REACH[kind]
        reached = t.clamp(low, high)
        if (reached - t).square().mean() > _NEVER * t.var():
            bound = "0 and above" if high is None else f"{low:g} to {high:g}"
            words = f"the output of {kind} ({bound}) is compared with targets from {t.min():.3g} to"
            share = percent(float((reached != t).float().mean()))
            return f"{words} {t.max():.3g}, {share} of them out of range"
    return None


def subtracted(calls: Sequence[Call]) -> str | None:
    """Describe targets `out_of_reach` of what they are subtracted from, or what is subtracted from them."""
    pairs = (tensors_of(one[1:3]) for one in calls if name_of(one) in _SUBTRACTING)
    return next((words for pair in pairs if len(pair) == 2 and (words := out_of_reach(*pair))), None)


def only_compared(calls: Sequence[Call], owners: Mapping[int, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield either of two models if its output is compared with the other's, row by row, but with no data.

    Args:
        owners: by the id of an output, its model.
    """
    origins = {key: {one.label} for key, one in owners.items()}
    compared, with_data = set[str](), set[str]()
    for call in calls:
        rows = [origins.get(id(x), set()) for x in tensors_of(call[1:3]) if x.ndim]
        found = set[str]().union(*rows)
        compared |= found if len(found) > 1 else set()
        with_data |= found if name_of(call) in _ACROSS or not all(rows) else set()
        origins |= {id(x): found for x in tensors_of(call[3])}
    models = {one.label: one for one in owners.values()}
    for one, other in permutations(models.values()) if len(models) == 2 else ():
        if one.label in compared - with_data:
            yield one, other
