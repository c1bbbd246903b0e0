"""Calls of torch's criteria that a trial measures or changes."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from modelscope_cli.watching.criteria import KINDS

_NAMES = (
    *("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
)
_TINY = 1e-7  # a probability
_NEAR = 1e-3  # distance from 1 of a sum of probabilities


@dataclass(slots=True)
class CriterionCall:
    """One call.

    Attributes:
        x: what it is given as predictions, which `args` or `kwargs` hold as well.
        options: all arguments by name.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return KINDS[self.name]

    @property
    def x(self) -> Any:
        return self.options.get("input")

    @property
    def target(self) -> Any:
        return self.options.get("target")

    def with_arguments(self, **changed: Any) -> "CriterionCall":
        """Return the same call with other arguments."""
        options = {**self.options, **changed}
        return CriterionCall(self.name, (), options, options)

    def log_probabilities(self, x: Tensor) -> Tensor:
        """Return the logarithms of the probabilities that the predictions of classes stand for."""
        if is_distribution(x):
            return x.float().clamp_min(_TINY).log()
        return functional.log_softmax(x.float(), 1)  # of logarithms of probabilities: these again

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of predictions of two classes."""
        if self.name == "binary_cross_entropy" or is_probability(x):
            return torch.logit(x.float().clamp(0, 1), _TINY)
        return x.float()


def is_distribution(x: Tensor) -> bool:
    """Tell whether every row of classes is one of probabilities."""
    return bool(x.ndim > 1 and x.shape[1] > 1 and (x >= 0).all() and ((x.sum(1) - 1).abs() < _NEAR).all())


def is_probability(x: Tensor) -> bool:
    """Tell whether all values are between 0 and 1; not at the ends, as zeros from a rectifier are."""
    return bool(((x > 0) & (x < 1)).all())


Handler = Callable[[CriterionCall, Callable[..., Any]], Any]


def wrapped_criteria(handle: Handler) -> list[tuple[Any, str, Any]]:
    """Return replacements of torch's criteria that call `handle(call, original)` instead."""
    return [(functional, name, _wrapped(name, getattr(functional, name), handle)) for name in _NAMES]


def _wrapped(name: str, original: Any, handle: Handler) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def criterion(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        options = dict(signature.bind(*args, **kwargs).arguments)
        return handle(CriterionCall(name, args, kwargs, options), original)

    return criterion
