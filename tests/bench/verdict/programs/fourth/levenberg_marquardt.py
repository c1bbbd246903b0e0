"""Least squares by Levenberg and Marquardt: Jacobians in forward mode, no backward pass and no optimizer."""

import torch
from small import explained, response
from torch import nn

x, y = response(300, 5)
net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
names, shapes = [n for n, _ in net.named_parameters()], [p.shape for p in net.parameters()]


def residuals(flat):
    parts = flat.split([shape.numel() for shape in shapes])
    weights = {n: part.view(shape) for n, part, shape in zip(names, parts, shapes, strict=True)}
    return (torch.func.functional_call(net, weights, (x,)) - y)[:, 0]


flat = nn.utils.parameters_to_vector(net.parameters()).detach()
damping, cost = 1.0, residuals(flat).square().mean()
for step in range(60):
    slope = torch.func.jacfwd(residuals)(flat)
    left = slope.T @ slope
    change = torch.linalg.solve(left + damping * torch.eye(len(flat)), slope.T @ residuals(flat))
    new_cost = residuals(flat - change).square().mean()
    if new_cost < cost:
        flat, cost, damping = flat - change, new_cost, damping / 3
    else:
        damping *= 2
    if step % 10 == 0:
        print(step, cost.item())
nn.utils.vector_to_parameters(flat, net.parameters())


def measure():
    return explained(net(x), y)
