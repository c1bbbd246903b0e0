"""How good a model has become: 0 is what a guess reaches, 1 is perfect. Never computed while a run is watched."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Score:
    """A share of what can be reached, above what a guess reaches, as `measure()` gives it."""

    measure: Callable[[], float]


def _outputs(model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    if isinstance(model, nn.Module):
        model.eval()
    with torch.no_grad():
        return model(inputs)


def accuracy(model: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor) -> Score:
    """Score the accuracy, balanced over the classes, of logits whose second axis is the classes."""

    def measure() -> float:
        predicted = _outputs(model, inputs).argmax(1)
        classes = labels.unique()
        recalls = [(predicted[labels == one] == one).float().mean().item() for one in classes]
        guess = 1 / max(len(recalls), 2)
        return (sum(recalls) / len(recalls) - guess) / (1 - guess)

    return Score(measure)


def explained(model: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor) -> Score:
    """Score the share of the targets' variance, of each column, that the outputs explain."""

    def measure() -> float:
        error = (_outputs(model, inputs).reshape(targets.shape) - targets).square().mean()
        return 1 - (error / (targets - targets.mean(0)).square().mean()).item()

    return Score(measure)


def thresholded(model: Callable[[Tensor], Tensor], inputs: Tensor, flags: Tensor) -> Score:
    """Score logits of flags of their own, or of the one logit of two classes."""

    def measure() -> float:
        predicted = _outputs(model, inputs).reshape(flags.shape) > 0
        hit = predicted[flags > 0.5].float().mean() - predicted[flags <= 0.5].float().mean()
        return hit.nan_to_num().item()

    return Score(measure)


def neighbours(embed: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor) -> Score:
    """Score embeddings: how often the nearest other image is of the same class."""

    def measure() -> float:
        points = _outputs(embed, inputs).flatten(1)
        distances = torch.cdist(points, points).fill_diagonal_(float("inf"))
        same = (labels[distances.argmin(1)] == labels).float().mean().item()
        guess = 1 / len(labels.unique())
        return (same - guess) / (1 - guess)

    return Score(measure)
