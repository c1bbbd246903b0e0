"""A neural differential equation solved by Runge-Kutta, fitted to trajectories of a spiral."""

import torch
from torch import nn
from toy import fault

field = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 2))
if fault("unbounded_field"):

    class Cube(nn.Module):
        def forward(self, x):
            return x**3 * 2

    field = nn.Sequential(nn.Linear(2, 48), Cube(), nn.Linear(48, 2))


def solve(f, x, steps=10, h=0.2):
    path = [x]
    for _ in range(steps):
        k1 = f(x)
        k2 = f(x + h / 2 * k1)
        k3 = f(x + h / 2 * k2)
        k4 = f(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(x)
    return torch.stack(path, 1)


A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
optimizer = torch.optim.AdamW(field.parameters(), lr=5e-3)
for _ in range(150):
    start = 1.5 * torch.randn(32, 2)
    with torch.no_grad():
        truth = solve(lambda x: x @ A.T, start)
    loss = (solve(field, start) - truth).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(field.parameters(), 1.0)
    optimizer.step()
