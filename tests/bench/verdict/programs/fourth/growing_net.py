"""A net that grows: layers are added during training, and their parameters to the optimizer."""

import torch
import torch.nn.functional as F
from small import explained, fault, response
from torch import nn


class Growing(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.width = width
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList()

    def grow(self):
        layer = nn.Linear(self.width, self.width)
        nn.init.zeros_(layer.bias)
        nn.init.normal_(layer.weight, std=0.05)
        self.layers.append(layer)
        return layer.parameters()

    def forward(self, x):
        h = F.silu(self.first(x))
        for layer in self.layers:
            h = h + F.silu(layer(h))
        return self.last(h)


x, y = response(640)
net = Growing()
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
for epoch in range(24):
    if epoch in (6, 12):
        new_rate = 9.0 if fault("new_layers_at_nine") else 0.03
        optimizer.add_param_group({"params": net.grow(), "lr": new_rate})
    for i in torch.randperm(640).split(32):
        loss = F.mse_loss(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    return explained(net(x), y)
