"""A physics-informed network for a damped oscillator, by L-BFGS with a line search."""

import torch
from small import explained, fault
from torch import nn


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


net = nn.Sequential(nn.Linear(1, 32), Sine(), nn.Linear(32, 32), Sine(), nn.Linear(32, 1))
t = torch.linspace(0, 6, 120)[:, None].requires_grad_()
optimizer = torch.optim.LBFGS(
    net.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe"
)


def closure():
    if not fault("closure_keeps_gradients"):
        optimizer.zero_grad()
    u = net(t)
    (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True)
    equation = (ddu + 0.3 * du + 4 * u).square().mean()
    start = (u[0] - 1).square() + du[0].square()
    loss = equation + 10 * start.sum()
    loss.backward()
    return loss


for step in range(40):
    loss = optimizer.step(closure)
    if step % 5 == 0:
        print(step, f"{loss.item():.5f}")


def measure():
    w = (4 - 0.15**2) ** 0.5
    exact = torch.exp(-0.15 * t) * (torch.cos(w * t) + 0.15 / w * torch.sin(w * t))
    return explained(net(t), exact)
