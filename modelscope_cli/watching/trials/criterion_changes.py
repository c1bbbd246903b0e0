"""Trials that change what a criterion is given."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
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


@contextmanager
def expected_input(act: Act) -> Iterator[None]:
    """Give a criterion of logits those that its input, probabilities, stands for; nll_loss log-probabilities."""

    def handle(criterion: CriterionCall, original: Callable[..., Any]) -> Any:
        x = criterion.x
        if isinstance(x, Tensor) and is_doubled(criterion):
            act()
            is_classes = criterion.kind == CLASSES
            criterion = criterion.with_arguments(
                input=criterion.log_probabilities(x) if is_classes else criterion.logits(x)
            )
        return original(*criterion.args, **criterion.kwargs)

    with replaced(*wrapped_criteria(handle)):
        yield


def is_doubled(criterion: CriterionCall) -> bool:
    """Tell whether a criterion applies an activation that its input has had already, or lacks one that is due."""
    x = criterion.x.detach()
    if criterion.name == "nll_loss":
        return x.ndim > 1 and not is_distribution(x.float().exp())
    is_binary = criterion.name == "binary_cross_entropy_with_logits"
    return is_distribution(x) if criterion.kind == CLASSES else is_binary and is_probability(x)


@contextmanager
def no_label_smoothing(act: Act) -> Iterator[None]:
    """Compute cross-entropies without smoothing of the labels."""

    def handle(criterion: CriterionCall, original: Callable[..., Any]) -> Any:
        if criterion.options.get("label_smoothing"):
            act()
            criterion = criterion.with_arguments(label_smoothing=0.0)
        return original(*criterion.args, **criterion.kwargs)

    with replaced(*wrapped_criteria(handle)):
        yield


@contextmanager
def labels_shuffled(act: Act) -> Iterator[None]:
    """Give every criterion of a training the targets of other samples of the batch."""
    generator = torch.Generator().manual_seed(0)

    def handle(criterion: CriterionCall, original: Callable[..., Any]) -> Any:
        target, x = criterion.target, criterion.x
        if isinstance(target, Tensor) and target.ndim and isinstance(x, Tensor) and x.requires_grad:
            act()
            order = torch.randperm(len(target), generator=generator).to(target.device)
            criterion = criterion.with_arguments(target=target[order])
        return original(*criterion.args, **criterion.kwargs)

    with replaced(*wrapped_criteria(handle)):
        yield
