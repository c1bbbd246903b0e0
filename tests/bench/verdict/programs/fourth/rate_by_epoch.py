"""A rate that warms up and then falls by a quarter an epoch, for a net of depthwise convolutions over a series."""

import torch
import torch.nn.functional as F
from small import accuracy, fault
from torch import nn

CLASSES, LENGTH = 5, 32
y = torch.randint(CLASSES, (480,))
time = torch.arange(LENGTH) / LENGTH
x = torch.sin(6.283 * ((y + 1)[:, None] * time + torch.rand(480, 1))) + 0.4 * torch.randn(480, LENGTH)
x = x[:, None]


def block(n_in, n_out):
    return nn.Sequential(
        nn.Conv1d(n_in, n_in, 7, padding=3, groups=n_in),
        nn.Conv1d(n_in, n_out, 1),
        nn.BatchNorm1d(n_out),
        nn.Hardswish(),
        nn.AvgPool1d(2),
    )


net = nn.Sequential(
    nn.Conv1d(1, 16, 5, padding=2), block(16, 32), block(32, 32), nn.Flatten(), nn.Linear(256, CLASSES)
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
EPOCHS = 12


def rate(count):
    """One half in the first epoch, then three quarters of the one before."""
    return min(1, (count + 1) / 2) * 0.75**count


by_epoch = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
for epoch in range(EPOCHS):
    for i in torch.randperm(480).split(48):
        loss = F.cross_entropy(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault("by_step"):
            by_epoch.step()
    if not fault("by_step"):
        by_epoch.step()


def measure():
    net.eval()
    return accuracy(net(x), y)
