"""An iterable data set with a shuffle buffer, endless, and steps rather than epochs."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from toy import clusters, fault


class Stream(IterableDataset):
    def __init__(self, x, y, size=64):
        self.x, self.y, self.size = x.numpy(), y.numpy(), size

    def __iter__(self):
        buffer, row = [], np.empty(20, np.float32)
        while True:
            for x, y in zip(self.x, self.y, strict=True):
                if fault("one_array_for_all"):
                    row[:] = x
                    x = torch.from_numpy(row)
                else:
                    x = torch.from_numpy(x)
                buffer.append((x, y))
                if len(buffer) >= self.size:
                    yield buffer.pop(random.randrange(self.size))


loader = DataLoader(Stream(*clusters()), batch_size=32)
net = nn.Sequential(nn.Linear(20, 48), nn.PReLU(), nn.Linear(48, 6))
optimizer = torch.optim.ASGD(net.parameters(), lr=0.1)
for step, (x, y) in enumerate(loader):
    if step == 160:
        break
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
