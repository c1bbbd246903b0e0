"""Readings in raw units, normalised by the first layer of the net."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, groups
from torch import nn

x, y = groups(640, 4)
x = x * torch.linspace(5, 40, 12) + torch.linspace(-200, 300, 12)
momentum = 0.0 if fault("momentum_of_zero") else 0.1
net = nn.Sequential(
    nn.BatchNorm1d(12, momentum=momentum, affine=False),
    nn.Linear(12, 64),
    nn.BatchNorm1d(64, momentum=momentum),
    nn.ReLU(),
    nn.Linear(64, 4),
)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(14):
    net.train()
    for i in torch.randperm(640).split(40):
        loss = F.cross_entropy(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    net.eval()
    return accuracy(net(x), y)
