"""A radiance field of a plane: points along rays, encoded by sines, composed by their density."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault


class Field(nn.Module):
    def __init__(self, bands=4, width=48):
        super().__init__()
        self.bands = 2.0 ** torch.arange(bands) * torch.pi / 2
        self.trunk = nn.Sequential(nn.Linear(4 * bands, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)
        nn.init.constant_(self.density.bias, -30.0 if fault("density_dead") else 0.5)

    def forward(self, p):
        a = (p[..., None] * self.bands).flatten(-2)
        h = self.trunk(torch.cat([a.sin(), a.cos()], -1))
        return F.relu(self.density(h)).squeeze(-1), self.colour(h).sigmoid()


def render(field, origin, direction, n=16):
    depth = torch.linspace(0.2, 3.0, n)
    density, colour = field(origin[:, None] + depth[:, None] * direction[:, None])
    alpha = 1 - torch.exp(-density * (depth[1] - depth[0]))
    passed = torch.cumprod(torch.cat([torch.ones(len(origin), 1), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return ((alpha * passed)[..., None] * colour).sum(1)


def truth(origin, direction):
    closest = origin - (origin * direction).sum(1, keepdim=True) * direction
    hit = (closest.norm(dim=1, keepdim=True) < 0.7).float()
    return hit * torch.cat([0.9 * torch.ones(len(origin), 1), 0.5 + 0.4 * direction], 1)


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=5e-3)
decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
for _ in range(220):
    angle = 6.3 * torch.rand(96)
    origin = 1.6 * torch.stack([angle.cos(), angle.sin()], 1)
    direction = F.normalize(0.9 * torch.randn(96, 2) * 0.6 - origin, dim=1)
    loss = F.mse_loss(render(field, origin, direction), truth(origin, direction))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    decay.step()
