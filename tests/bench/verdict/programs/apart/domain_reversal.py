"""Domain adaptation: a gradient reversed before the head that tells the domains apart."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import clusters, fault


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, amount):
        ctx.amount = amount
        return x.view_as(x)

    @staticmethod
    def backward(ctx, slope):
        return -ctx.amount * slope, None


x, y = clusters(640)
source, target = (x[:320], y[:320]), x[320:] + 0.5
features = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
kind, domain = nn.Linear(32, 6), nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
held = [*features.parameters(), *kind.parameters()] + (
    [] if fault("domain_head_left_out") else [*domain.parameters()]
)
optimizer = torch.optim.Adam(held, lr=2e-3)
for epoch in range(14):
    for i, j in zip(torch.randperm(320).split(32), torch.randperm(320).split(32), strict=True):
        a, b = features(source[0][i]), features(target[j])
        which = domain(Reverse.apply(torch.cat([a, b]), 0.3)).squeeze(1)
        truth = torch.cat([torch.ones(32), torch.zeros(32)])
        loss = F.cross_entropy(kind(a), source[1][i]) + F.binary_cross_entropy_with_logits(which, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
