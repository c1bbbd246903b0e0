"""Trials that change what a criterion is given."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from modelscope_cli.watching.criteria import CLASSES
from modelscope_cli.watching.error_isolation import replaced
from modelscope_cli.watching.trials.change import Act
from modelscope_cli.watching.trials.criteria import (
    CriterionCall,
    is_distribution,
    is_probability,
    wrapped_criteria,
)


def _with_calls(
    change: Callable[[CriterionCall], CriterionCall | None], act: Act
) -> AbstractContextManager[None]:
    """Call criteria as `change` says; where it returns None, as the script does."""

    def handle(criterion: CriterionCall, original: Callable[..., Any]) -> Any:
        changed = change(criterion)
        if changed is not None:
            act()
        criterion = changed or criterion
        return original(*criterion.args, **criterion.kwargs)

    return replaced(*wrapped_criteria(handle))


def expected_input(act: Act) -> Any:
    """Give a criterion of logits those that its input, probabilities, stands for; nll_loss log-probabilities."""

    def change(criterion: CriterionCall) -> CriterionCall | None:
        x = criterion.x
        if not isinstance(x, Tensor) or not is_doubled(criterion):
            return None
        is_classes = criterion.kind == CLASSES
        return criterion.with_arguments(
            input=criterion.log_probabilities(x) if is_classes else criterion.logits(x)
        )

    return _with_calls(change, act)


def is_doubled(criterion: CriterionCall) -> bool:
    """Tell whether a criterion applies an activation that its input has had already, or lacks one that is due."""
    x = criterion.x.detach()
    if criterion.name == "nll_loss":
        return x.ndim > 1 and not is_distribution(x.float().exp())
    is_binary = criterion.name == "binary_cross_entropy_with_logits"
    return is_distribution(x) if criterion.kind == CLASSES else is_binary and is_probability(x)


def usual_logits(act: Act) -> Any:
    """Divide the logits that a criterion of a training is given by the standard deviation of its first ones."""
    known: dict[str, float] = {}

    def change(criterion: CriterionCall) -> CriterionCall | None:
        x = criterion.x
        if not isinstance(x, Tensor) or not x.requires_grad:
            return None
        std = known.setdefault(criterion.name, std_of_logits(criterion))
        return criterion.with_arguments(input=criterion.log_probabilities(x / std)) if std else None

    return _with_calls(change, act)


def std_of_logits(criterion: CriterionCall) -> float:
    """Return the standard deviation of the logits of a row of classes; 0 where the input is not of logits."""
    x = criterion.x.detach().float()
    is_of_classes = criterion.kind == CLASSES and x.ndim > 1 and x.shape[1] > 1
    return float(x.std(1).mean()) if is_of_classes and not is_distribution(x) else 0.0


def no_label_smoothing(act: Act) -> Any:
    """Compute cross-entropies without smoothing of the labels."""

    def change(criterion: CriterionCall) -> CriterionCall | None:
        is_smooth = criterion.options.get("label_smoothing")
        return criterion.with_arguments(label_smoothing=0.0) if is_smooth else None

    return _with_calls(change, act)
