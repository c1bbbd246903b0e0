"""A mixture density network for a relation that has several answers."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault

y = torch.rand(600, 1) * 2 - 1
x = y + 0.3 * torch.sin(6.283 * y) + 0.05 * torch.randn_like(y)
x = (x - x.mean()) / x.std()
net = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 15))
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
for _ in range(16):
    for i in torch.randperm(600).split(50):
        logits, mean, log_std = net(x[i]).chunk(3, 1)
        log_std = log_std.clamp(-4, 2)
        log_weight = F.log_softmax(logits, dim=0 if fault("softmax_over_batch") else 1)
        log_p = -0.5 * ((y[i] - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        loss = -torch.logsumexp(log_weight + log_p, 1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
