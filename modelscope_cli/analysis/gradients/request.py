"""The request for `grads`, checked before torch is imported. Standard library."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from modelscope_cli.errors import UsageError, one_of, with_nearest
from modelscope_cli.records.grads import ClipInfo

LOSSES = ("cross-entropy", "nll", "bce", "mse", "mean", "logit")
AUTO, PREDICTED = "auto", "predicted"


@dataclass(frozen=True, slots=True)
class LossRequest:
    """Which scalar to differentiate."""

    name: str = AUTO  # one of `LOSSES`, `auto` for what fits the output, or `module:fn` for the user's own
    target: str = PREDICTED  # a class index, a label, or `predicted`
    function: Callable[..., Any] | None = None  # the user's own, if it was passed in and not named

    @property
    def is_custom(self) -> bool:
        return self.function is not None or ":" in self.name


@dataclass(frozen=True, slots=True)
class GradsRequest:
    """All options of `grads` except the model and its input."""

    loss: LossRequest = field(default_factory=LossRequest)
    # `value` clamps every element of every parameter's gradient, `norm` scales all of them to a global norm
    clip: ClipInfo | None = None
    freeze: tuple[str, ...] = ()  # layer patterns whose parameters are not trained
    # Layer patterns outside of which nothing is trained; empty for everything
    train_only: tuple[str, ...] = ()
    is_training: bool = False  # run in train mode


def check_loss(request: LossRequest) -> None:
    """Refuse an unknown loss."""
    if not request.is_custom and request.name not in (AUTO, *LOSSES):
        message = with_nearest(f"unknown loss '{request.name}'", request.name, LOSSES)
        raise UsageError(message, f"{one_of(request.name, LOSSES, '--loss')}, or path/to/file.py:fn")
