"""Gradients by forward mode only: a random direction, its slope, and a step along it. Healthy only."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jvp
from toy import clusters

x, y = clusters(320, classes=3, features=8)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
parameters = {name: p.detach().clone() for name, p in net.named_parameters()}
for step in range(200):
    i = torch.randint(320, (32,))
    direction = {name: torch.randn_like(p) for name, p in parameters.items()}
    loss, slope = jvp(
        lambda p: F.cross_entropy(functional_call(net, p, (x[i],)), y[i]), (parameters,), (direction,)
    )
    parameters = {name: p - 0.02 * slope * direction[name] for name, p in parameters.items()}
net.load_state_dict(parameters)
