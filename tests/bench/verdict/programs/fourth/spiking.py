"""Leaky neurons that spike, with a surrogate gradient, over twelve time steps."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, groups
from torch import nn


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, potential):
        ctx.save_for_backward(potential)
        return (potential > 0).float()

    @staticmethod
    def backward(ctx, slope):
        (potential,) = ctx.saved_tensors
        return slope / (1 + 5 * potential.abs()) ** 2


def spike(potential):
    return (potential > 0).float() if fault("no_surrogate") else Spike.apply(potential)


class Net(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.one, self.two, self.out = (
            nn.Linear(n_in, n_hidden),
            nn.Linear(n_hidden, n_hidden),
            nn.Linear(n_hidden, n_out),
        )

    def forward(self, x, steps=12):
        v1 = v2 = total = 0
        for _ in range(steps):
            v1 = 0.8 * v1 + self.one(x)
            s1 = spike(v1 - 1)
            v1 = v1 - s1.detach()
            v2 = 0.8 * v2 + self.two(s1)
            s2 = spike(v2 - 1)
            v2 = v2 - s2.detach()
            total = total + self.out(s2)
        return total / steps


x, y = groups(480, classes=5)
net = Net(12, 64, 5)
optimizer = torch.optim.Adamax(net.parameters(), lr=0.01)
for _ in range(10):
    for i in torch.randperm(len(x)).split(32):
        loss = F.cross_entropy(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    return accuracy(net(x), y)
