"""Meta-learning by Reptile: inner steps on one sine, then the weights move a little towards where they went."""

import copy

import torch
from torch import nn
from toy import fault

net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
for outer in range(120):
    before = copy.deepcopy(net.state_dict())
    phase, height = torch.rand(2).tolist()
    x = torch.rand(20, 1) * 10 - 5
    y = (1 + 0.5 * height) * torch.sin(x + phase)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03)
    for i in torch.randint(20, (5, 10)):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[i]), y[i]).backward()
        optimizer.step()
    rate = 0.0 if fault("outer_rate_zero") else 0.5 * (1 - outer / 120)
    after = net.state_dict()
    net.load_state_dict({name: before[name] + rate * (after[name] - before[name]) for name in before})
