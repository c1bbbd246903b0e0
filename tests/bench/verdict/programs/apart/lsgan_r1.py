"""A least-squares GAN with a lazy gradient penalty on real samples."""

import torch
from torch import nn
from toy import fault, two_moons

G = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
D = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
optimizer_G = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
optimizer_D = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.99))
data = two_moons()
for step in range(220):
    real = data[torch.randint(len(data), (64,))]
    z = torch.randn(64, 4)
    optimizer_D.zero_grad()
    loss_D = 0.5 * ((D(real) - 1).square().mean() + D(G(z).detach()).square().mean())
    loss_D.backward()
    if step % 8 == 0:
        real.requires_grad_(True)
        (slope,) = torch.autograd.grad(D(real).sum(), real, create_graph=True)
        (4 * 0.1 * slope.square().sum(1).mean()).backward()
        real.requires_grad_(False)
    optimizer_D.step()
    optimizer_G.zero_grad()
    loss_G = 0.5 * (D(G(z)) - 1).square().mean()
    loss_G.backward()
    if fault("generator_never_steps"):
        optimizer_D.step()
    else:
        optimizer_G.step()
