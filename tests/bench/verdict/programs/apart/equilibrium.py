"""A deep equilibrium layer: a fixed point without gradient, and one step with it (Jacobian-free)."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import clusters, fault


class Equilibrium(nn.Module):
    def __init__(self, n_in, n):
        super().__init__()
        self.inject, self.inner, self.norm = nn.Linear(n_in, n), nn.Linear(n, n), nn.LayerNorm(n)
        nn.init.normal_(self.inner.weight, std=0.3 / n**0.5)

    def f(self, z, x):
        return torch.tanh(self.norm(self.inner(z) + self.inject(x)))

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros(len(x), self.inner.in_features)
            for _ in range(12):
                z = self.f(z, x)
        return z if fault("no_step_with_gradient") else self.f(z, x)


x, y = clusters()
net = nn.Sequential(Equilibrium(20, 40), nn.Linear(40, 6))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(10):
    for i in torch.randperm(512).split(32):
        loss = F.cross_entropy(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
