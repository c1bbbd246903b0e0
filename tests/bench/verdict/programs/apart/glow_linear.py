"""A flow with data-dependent actnorm, invertible linear maps and affine coupling, by exact likelihood."""

import math

import torch
from torch import nn
from toy import fault, two_moons


class ActNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log_scale.copy_(-x.std(0).log())
                self.ready.fill_(True)
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum()


class Mix(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(d, d))[0])

    def forward(self, x):
        return x @ self.weight, torch.linalg.slogdet(self.weight)[1]


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale)
        return torch.cat([a, b * scale.exp() + shift], 1), scale.sum(1)


parts = nn.ModuleList(part for _ in range(4) for part in (ActNorm(2), Mix(2), Coupling()))
optimizer = torch.optim.Adam(parts.parameters(), lr=5e-3)
data = two_moons()
for _ in range(30):
    for x in data[torch.randperm(len(data))].split(128):
        total = 0
        for part in parts:
            x, logdet = part(x)
            total = total - logdet if fault("logdet_sign") else total + logdet
        loss = (0.5 * x.square().sum(1) + math.log(2 * math.pi) - total).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
