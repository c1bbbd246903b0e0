"""Two views of an image under an invariance, a variance and a covariance term."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures

images, _ = pictures(512)
encoder = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 32)
)
projector = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.AdamW([*encoder.parameters(), *projector.parameters()], lr=2e-3)


def view(x):
    return (x + 0.3 * torch.randn_like(x)) * (torch.rand(len(x), 1, 12, 12) > 0.1)


def off_diagonal(m):
    return m - torch.diag(m.diagonal())


for _ in range(8):
    for i in torch.randperm(512).split(64):
        a, b = projector(encoder(view(images[i]))), projector(encoder(view(images[i])))
        invariance = F.mse_loss(a, b)
        variance = sum(F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() for z in (a, b))
        covariance = sum(off_diagonal(torch.cov(z.T)).square().sum() / 32 for z in (a, b))
        loss = 25 * invariance if fault("invariance_only") else 25 * invariance + 25 * variance + covariance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
