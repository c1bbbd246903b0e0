"""Denoising score matching over several levels of noise."""

import torch
from torch import nn
from toy import fault, two_moons

score = nn.Sequential(nn.Linear(3, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(score.parameters(), lr=2e-3)
levels = torch.logspace(0, -1, 8)
if fault("a_level_of_zero"):
    levels = torch.linspace(1, 0, 8)
data = two_moons()
for epoch in range(30):
    for x in data[torch.randperm(len(data))].split(64):
        sigma = levels[torch.randint(len(levels), (len(x), 1))]
        noise = torch.randn_like(x)
        predicted = (
            score(torch.cat([x + sigma * noise, sigma.log() if not fault("a_level_of_zero") else sigma], 1))
            / sigma
        )
        loss = (sigma.square() * (predicted + noise / sigma).square().sum(1, keepdim=True)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
