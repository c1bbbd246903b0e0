"""An energy-based model by contrastive divergence: negatives from Langevin steps out of a buffer."""

import torch
from torch import nn
from toy import fault, two_moons

energy = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3, betas=(0.0, 0.999))
data = two_moons()
buffer = torch.rand(512, 2) * 4 - 2


def langevin(x, steps=6, size=0.05):
    for p in energy.parameters():
        p.requires_grad_(False)
    x = x.clone().requires_grad_(True)
    for _ in range(steps):
        (slope,) = torch.autograd.grad(energy(x).sum(), x)
        x = (x - size * slope + 0.05 * torch.randn_like(x)).clamp(-2.5, 2.5).detach().requires_grad_(True)
    for p in energy.parameters():
        p.requires_grad_(True)
    return x.detach()


for step in range(150):
    index = torch.randint(len(buffer), (128,))
    start = torch.where(torch.rand(128, 1) < 0.05, torch.rand(128, 2) * 4 - 2, buffer[index])
    negatives = langevin(start)
    buffer[index] = negatives
    real = data[torch.randint(len(data), (128,))]
    high, low = energy(negatives).mean(), energy(real).mean()
    penalty = 0.5 * (energy(real).square() + energy(negatives).square()).mean()
    loss = (high - low if fault("sign") else low - high) + (0 if fault("sign") else penalty)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(energy.parameters(), 1.0)
    optimizer.step()
