"""Two processes that train together: once with a share of the data each, once with the same."""

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, digits
from programs.models import cnn
from programs.scores import Score, accuracy


def _train(model: nn.Module, seen: Tensor, labels: Tensor) -> None:
    torch.distributed.init_process_group("gloo")
    together = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(together.parameters(), lr=0.05, momentum=0.9)
    for images, targets in batches(seen, labels, steps=40):
        optimizer.zero_grad()
        F.cross_entropy(together(images), targets).backward()
        optimizer.step()
    torch.distributed.destroy_process_group()


def ranks_without_a_sampler() -> Score:
    images, labels = digits()
    model = cnn(width=8)
    _train(model, images, labels)
    return accuracy(model, images, labels)


def ranks_with_a_share_each() -> Score:
    images, labels = digits()
    model = cnn(width=8)
    rank = int(os.environ["RANK"])
    _train(model, images[rank::2], labels[rank::2])
    return accuracy(model, images, labels)
