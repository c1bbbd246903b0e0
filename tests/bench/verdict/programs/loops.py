"""The plain loop of every tutorial, for trainings whose story is elsewhere."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from programs.data import batches


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    data: tuple[Tensor, Tensor],
    steps: int = 120,
    size: int = 32,
    criterion: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> None:
    model.train()
    for inputs, targets in batches(*data, size=size, steps=steps):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
