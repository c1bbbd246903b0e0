"""A Wasserstein critic with a gradient penalty, three steps of it for each of the generator."""

import torch
from small import fault
from torch import nn


def mlp(n_in, n_out):
    return nn.Sequential(
        nn.Linear(n_in, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, n_out)
    )


def real(n):
    return torch.randn(n, 2) * torch.tensor([0.3, 0.8]) + torch.tensor([2.0, -1.0])


generator, critic = mlp(4, 2), mlp(2, 1)
both = [*generator.parameters(), *critic.parameters()]
for_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
for_c = torch.optim.Adam(
    both if fault("critic_steps_move_the_generator") else critic.parameters(), lr=2e-3, betas=(0.5, 0.9)
)
fall = [torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.02, 900) for one in (for_g, for_c)]
for step in range(900):
    a, b = real(64), generator(torch.randn(64, 4))
    if not fault("critic_steps_move_the_generator"):
        b = b.detach()
    mix = torch.rand(64, 1)
    between = (mix * a + (1 - mix) * b).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    loss_c = critic(b).mean() - critic(a).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
    for_c.zero_grad()
    loss_c.backward()
    for_c.step()
    if step % 3 == 2:
        loss_g = -critic(generator(torch.randn(64, 4))).mean()
        for_g.zero_grad()
        loss_g.backward()
        for_g.step()
    for one in fall:
        one.step()


def measure():
    a, b = real(2000), generator(torch.randn(2000, 4))
    return 1 - ((a.mean(0) - b.mean(0)).norm() / a.mean(0).norm() + (a.std(0) - b.std(0)).norm() / 2).item()
