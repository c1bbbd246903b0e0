"""One of six experts for each token, by a router with a balancing loss: at times an expert has no token."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, groups
from torch import nn


class Mixture(nn.Module):
    def __init__(self, width, n_experts=6):
        super().__init__()
        self.router = nn.Linear(width, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(n_experts)
        )

    def forward(self, x):
        probability = self.router(x).softmax(-1)
        weight, choice = probability.max(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            here = choice == k
            if here.any():
                scale = 1.0 if fault("chosen_without_weight") else weight[here, None]
                out[here] = scale * expert(x[here])
        share = F.one_hot(choice, len(self.experts)).float().mean(0)
        balance = len(self.experts) * (share * probability.mean(0)).sum()
        return x + out, torch.zeros(()) if fault("chosen_without_weight") else balance


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.mixture, self.head = nn.Linear(12, 32), Mixture(32), nn.Linear(32, 4)

    def forward(self, x):
        h, balance = self.mixture(self.stem(x))
        return self.head(h), balance


x, y = groups(640)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for _ in range(12):
    for i in torch.randperm(len(x)).split(32):
        out, balance = net(x[i])
        loss = F.cross_entropy(out, y[i]) + 0.02 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    return accuracy(net(x)[0], y)
