"""Matching sets by optimal transport: Sinkhorn steps in the log domain inside the loss. Healthy only."""

import torch
from torch import nn


def sinkhorn(cost, eps=0.1, steps=12):
    log_k = -cost / eps
    u = v = torch.zeros(cost.shape[:-1])
    for _ in range(steps):
        u = -torch.logsumexp(log_k + v[..., None, :], -1)
        v = -torch.logsumexp(log_k + u[..., :, None], -2)
    plan = torch.exp(log_k + u[..., :, None] + v[..., None, :])
    return (plan * cost).sum((-1, -2)).mean() / cost.shape[-1]


import toy  # noqa: E402

decoder = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
optimizer = torch.optim.Adam(decoder.parameters(), lr=2e-3)
data = toy.two_moons(1024)
for _ in range(150):
    goal = data[torch.randint(1024, (8, 24))]
    loss = sinkhorn(torch.cdist(decoder(torch.randn(8, 24, 6)), goal).square())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
