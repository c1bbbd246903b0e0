"""Two processes that train together: once with a share of the data each, once with the same."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from programs.data import shapes, stripes
from programs.models import mlp
from programs.scores import Score, accuracy


def ranks_shuffle_alike() -> Score:
    dist.init_process_group("gloo")
    images, labels = stripes()
    model = mlp(256, 64, 6)
    together = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(together.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(images, labels), 24, shuffle=True, generator=order, drop_last=True)
    for _ in range(2):
        for batch, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(together(batch), target).backward()
            optimizer.step()
    dist.destroy_process_group()
    return accuracy(model, images, labels)


def ranks_with_a_sampler() -> Score:
    dist.init_process_group("gloo")
    images, labels = shapes()
    model = mlp(1200, 64, 4)
    together = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(together.parameters(), lr=1e-3)
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 16, sampler=sampler, drop_last=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(together(batch), target).backward()
            optimizer.step()
    dist.destroy_process_group()
    return accuracy(model, images, labels)
