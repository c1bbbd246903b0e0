"""Survival times by Cox's partial likelihood over the risk sets of a batch."""

import torch
from torch import nn
from toy import fault

x = torch.randn(480, 8)
risk = 1.2 * x[:, 0] - x[:, 1] * x[:, 2]
time = torch.empty(480).exponential_() * torch.exp(-risk)
seen = torch.rand(480) < 0.8
if fault("times_of_others"):
    time = time[torch.randperm(480)]
net = nn.Sequential(nn.Linear(8, 48), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(48, 1, bias=False))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(16):
    for i in torch.randperm(480).split(60):
        order = i[time[i].argsort(descending=True)]
        h = net(x[order]).squeeze(1)
        loss = -(h - torch.logcumsumexp(h, 0))[seen[order]].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
