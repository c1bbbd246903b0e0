"""A generator trained without a critic, by the distances of sorted projections."""

import torch
import torch.nn.functional as F
from small import fault
from torch import nn


def real(n):
    side = torch.randint(2, (n, 1)) * 2.0 - 1
    return side * torch.tensor([2.0, 1.0]) + 0.3 * torch.randn(n, 2)


net = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(400):
    noise = torch.zeros(128, 4) if fault("noise_of_zeros") else torch.randn(128, 4)
    ways = F.normalize(torch.randn(2, 40), dim=0)
    fake, true = ((points @ ways).sort(0).values for points in (net(noise), real(128)))
    loss = (fake - true).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def measure():
    fake, true, flat = net(torch.randn(3000, 4)), real(3000), torch.zeros(3000, 2)
    ways = F.normalize(torch.randn(2, 60), dim=0)
    far, base = (
        ((a @ ways).sort(0).values - (true @ ways).sort(0).values).abs().mean() for a in (fake, flat)
    )
    return 1 - (far / base).item()
