"""Diffusion of points that predicts the velocity v, weighted by the signal-to-noise ratio."""

import math

import torch
from small import explained
from torch import nn


def corners(n):
    return torch.randint(2, (n, 2)) * 4.0 - 2 + 0.03 * torch.randn(n, 2)


class Net(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.register_buffer("frequencies", torch.exp(torch.linspace(0, 3, 8)))
        self.layers = nn.Sequential(
            nn.Linear(2 + 16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.zeros_(self.layers[-1].bias)

    def forward(self, x, t):
        angle = t[:, None] * self.frequencies
        return self.layers(torch.cat([x, angle.sin(), angle.cos()], 1))


def noised(n):
    x, noise, t = corners(n), torch.randn(n, 2), torch.rand(n)
    a, s = torch.cos(t * math.pi / 2)[:, None], torch.sin(t * math.pi / 2)[:, None]
    return x, a, s, a * x + s * noise, t, a * noise - s * x


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900)
for _ in range(900):
    _, a, s, z, t, v = noised(128)
    ratio = a / s.clamp(min=1e-3)
    weight = (ratio.square().clamp(max=5) / (ratio.square() + 1)).squeeze(1)
    loss = (weight * (net(z, t) - v).square().mean(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()


def measure():
    x, a, s, z, t, _ = noised(4000)
    return explained(a * z - s * net(z, t), x)
