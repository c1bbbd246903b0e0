"""Operator learning: a branch reads a function at sensors, a trunk the place asked for; their product is the answer."""

import torch
from torch import nn
from toy import fault


class DeepONet(nn.Module):
    def __init__(self, sensors=20, width=40):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(sensors, width), nn.GELU(), nn.Linear(width, width))
        self.trunk = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, function, place):
        if fault("branch_without_gradient"):
            with torch.no_grad():
                coefficients = self.branch(function)
        else:
            coefficients = self.branch(function)
        return (coefficients * self.trunk(place)).sum(-1, keepdim=True) / 6 + self.bias


grid = torch.linspace(0, 1, 20)
a, b = torch.randn(2, 400, 1)
functions = a * torch.cos(3 * grid) + b * torch.sin(5 * grid)
model = DeepONet()
optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
for epoch in range(16):
    for i in torch.randperm(400).split(32):
        place = torch.rand(len(i), 1)
        integral = a[i] * torch.sin(3 * place) / 3 + b[i] * (1 - torch.cos(5 * place)) / 5
        loss = nn.functional.mse_loss(model(functions[i], place), 4 * integral)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
