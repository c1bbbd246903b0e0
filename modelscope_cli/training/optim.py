"""Optimizers and schedules of torch, by name."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from modelscope_cli.training.request import TrainRequest

_MOMENTUM = 0.9


def make_optimizer(parameters: Iterable[nn.Parameter], request: TrainRequest) -> torch.optim.Optimizer:
    """Make the optimizer; momentum is 0.9."""
    lr, decay = request.lr, request.weight_decay
    if request.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
    return torch.optim.SGD(
        parameters,
        lr=lr,
        momentum=0.0 if request.optimizer == "sgd" else _MOMENTUM,
        nesterov=request.optimizer == "nesterov",
        weight_decay=decay,
    )


def make_schedule(optimizer: torch.optim.Optimizer, request: TrainRequest) -> LRScheduler | None:
    """Make the schedule over all steps; None where the learning rate is constant."""
    if request.schedule == "one-cycle":
        return OneCycleLR(optimizer, request.lr, total_steps=request.steps)
    if request.schedule == "cosine":
        return CosineAnnealingLR(optimizer, request.steps)
    return None
