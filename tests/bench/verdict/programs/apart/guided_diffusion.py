"""Class-conditional diffusion with a cosine schedule, labels dropped at random, and an average of the weights."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures


class Denoiser(nn.Module):
    def __init__(self, width=24, classes=5):
        super().__init__()
        self.label = nn.Embedding(classes + 1, width)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.last = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 1, 3, padding=1))
        nn.init.zeros_(self.last[-1].weight)

    def forward(self, x, t, y):
        h = self.first(x)
        h = h + (self.time(t[:, None]) + self.label(y))[:, :, None, None]
        return self.last(h + self.middle(h))


images, labels = pictures(256)
model = Denoiser()
ema = copy.deepcopy(model).eval().requires_grad_(False)
trained = copy.deepcopy(model) if fault("optimizer_of_the_copy") else model
optimizer = torch.optim.Adam(trained.parameters(), lr=2e-3)
for step in range(160):
    pick = torch.randint(len(images), (16,))
    x, y = images[pick], labels[pick].clone()
    y[torch.rand(len(y)) < 0.1] = 5
    t = torch.rand(len(x))
    keep = (t * torch.pi / 2).cos().square()[:, None, None, None]
    noise = torch.randn_like(x)
    loss = F.mse_loss(model(keep.sqrt() * x + (1 - keep).sqrt() * noise, t, y), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, now in zip(ema.parameters(), model.parameters(), strict=True):
            slow.mul_(0.98).add_(now, alpha=0.02)
