"""Three tasks one after the other, with rehearsal of the earlier ones: the loss jumps with each."""

import random

import torch
import torch.nn.functional as F
from small import accuracy, icons
from torch import nn

x, y = icons(720, 9)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, 2, 1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(288, 64),
    nn.ReLU(),
    nn.Linear(64, 9),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
kept = []
for task in range(3):
    rows = (y // 3 == task).nonzero()[:, 0]
    for _ in range(14):
        for i in rows[torch.randperm(len(rows))].split(24):
            if kept:
                i = torch.cat([i, torch.tensor(random.sample(kept, 24))])
            loss = F.cross_entropy(net(x[i]), y[i])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    kept += rows[torch.randperm(len(rows))][:60].tolist()


def measure():
    return accuracy(net(x), y)
