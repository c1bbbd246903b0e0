"""Neural cellular automata: a grid updates itself by a learnt rule whose last layer starts at zero; a pool of states."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault


class Rule(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        same = torch.zeros(3, 3)
        same[1, 1] = 1
        self.register_buffer("filters", torch.stack([same, sobel, sobel.T]).repeat(channels, 1, 1)[:, None])
        self.channels = channels
        self.one, self.two = nn.Conv2d(3 * channels, 32, 1), nn.Conv2d(32, channels, 1, bias=False)
        nn.init.zeros_(self.two.weight)

    def forward(self, x):
        seen = F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), self.filters, groups=self.channels)
        change = self.two(F.relu(self.one(seen)))
        alive = (torch.rand(len(x), 1, *x.shape[2:]) < (-1 if fault("mask_never_alive") else 0.5)).float()
        return x + change * alive


goal = torch.zeros(1, 12, 12)
goal[0, 3:9, 3:9] = 1
goal[0, 5:7, 5:7] = -1
seed = torch.zeros(8, 12, 12)
seed[:, 6, 6] = 1
pool = [seed.clone() for _ in range(24)]
rule = Rule()
optimizer = torch.optim.Adam(rule.parameters(), lr=3e-3)
for step in range(90):
    pick = random.sample(range(24), 6)
    x = torch.stack([pool[k] for k in pick])
    x[0] = seed
    for _ in range(random.randint(6, 10)):
        x = rule(x)
    loss = (x[:, :1] - goal).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for p in rule.parameters():
        if p.grad is not None:
            p.grad /= p.grad.norm() + 1e-8
    optimizer.step()
    for k, state in zip(pick, x.detach().clamp(-3, 3), strict=True):
        pool[k] = state
