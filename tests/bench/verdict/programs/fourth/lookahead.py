"""Lookahead around Adam: slow weights that follow the fast ones, every five steps."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, groups
from torch import nn


class Lookahead:
    def __init__(self, inner, k=5, alpha=0.5):
        self.inner, self.k, self.alpha, self.count = inner, k, alpha, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in inner.param_groups]

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.inner.param_groups, self.slow, strict=True):
                for p, s in zip(group["params"], slow, strict=True):
                    s.add_(self.alpha * (p.detach() - s))
                    p.data.copy_(s)


x, y = groups()
net = nn.Sequential(nn.Linear(12, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 4))
optimizer = Lookahead(
    torch.optim.RAdam(net.parameters(), lr=5e-3), alpha=0.0 if fault("never_follows") else 0.5
)
for epoch in range(15):
    for i in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(net(x[i]), y[i]).backward()
        optimizer.step()


def measure():
    return accuracy(net(x), y)
