"""A conditional GAN by hinge losses: spectral norm, a projection discriminator, two updates of it for one of the other."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from toy import fault


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label = nn.Embedding(4, 8)
        self.net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))

    def forward(self, z, y):
        return self.net(torch.cat([z, self.label(y)], 1))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            spectral_norm(nn.Linear(2, 48)),
            nn.LeakyReLU(0.1),
            spectral_norm(nn.Linear(48, 48)),
            nn.LeakyReLU(0.1),
        )
        self.out = spectral_norm(nn.Linear(48, 1))
        self.label = spectral_norm(nn.Embedding(4, 48))

    def forward(self, x, y):
        h = self.body(x)
        return self.out(h).squeeze(1) + (h * self.label(y)).sum(1)


def real(n):
    y = torch.randint(4, (n,))
    angle = y * torch.pi / 2
    return torch.stack([angle.cos(), angle.sin()], 1) * 1.5 + 0.1 * torch.randn(n, 2), y


G, D = Generator(), Critic()
opt_g = torch.optim.Adam(G.parameters(), 1e-3, (0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), 2e-3, (0.0, 0.9))
for step in range(150):
    for _ in range(2):
        x, y = real(64)
        with torch.no_grad():
            fake = G(torch.randn(64, 8), y)
        d_loss = F.relu(1 - D(x, y)).mean() + F.relu(1 + D(fake, y)).mean()
        if not fault("critic_never_cleared"):
            opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
    y = torch.randint(4, (64,))
    D.requires_grad_(False)
    g_loss = -D(G(torch.randn(64, 8), y), y).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    D.requires_grad_(True)
