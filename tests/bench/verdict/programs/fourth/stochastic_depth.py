"""Residual blocks that are left out at random, so that some have no gradient at some steps."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn

DEPTH = 6
x, y = icons(480, 5)


class Block(nn.Module):
    def __init__(self, width, survives):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.survives = survives

    def forward(self, x):
        if self.training and torch.rand(()) > self.survives:
            return x
        h = self.down(F.silu(self.up(self.norm(x))))
        return x + (h / self.survives if self.training and self.survives else h)


def survival(k):
    return 0.0 if fault("never_survives") else 1 - 0.5 * k / (DEPTH - 1)


net = nn.Sequential(
    nn.Flatten(),
    nn.Linear(144, 48),
    *[Block(48, survival(k)) for k in range(DEPTH)],
    nn.LayerNorm(48),
    nn.Linear(48, 5),
)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
for _ in range(12):
    for i in torch.randperm(len(x)).split(32):
        loss = F.cross_entropy(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    net.eval()
    return accuracy(net(x), y)
