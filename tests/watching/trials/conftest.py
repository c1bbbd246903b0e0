"""Trainings for trials, and changes opened as in a process of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from modelscope_cli.watching.trials.change import Act, Change


class Noted(Act):
    """What a change told."""

    def __init__(self) -> None:
        self.notes: list[dict] = []
        self.left_out = 0
        super().__init__(lambda **one: self.notes.append(one), self._count)

    def _count(self) -> None:
        self.left_out += 1


@contextmanager
def changed(change: Change) -> Iterator[Noted]:
    noted = Noted()
    with change(noted):
        yield noted


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def batches(n: int = 12, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(16, 6, generator=generator), torch.randint(0, 3, (16,), generator=generator))
        for _ in range(n)
    ]


Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor], object]


def usual_step(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.fixture
def train():
    """Train a network, and return its weights as one vector."""

    def run(make=lambda p: torch.optim.SGD(p, lr=0.1), step: Step = usual_step, model=None, data=None):
        model = model or network()
        optimizer = make(model.parameters())
        for x, y in data or batches():
            step(model, optimizer, x, y)
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    return run
