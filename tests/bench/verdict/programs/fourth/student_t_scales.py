"""Heavy tails of varying width: a negative log-likelihood of Student's t that goes below zero."""

import torch
import torch.nn.functional as F
from small import explained, fault
from torch import nn
from torch.distributions import StudentT

x = torch.rand(600, 3) * 4 - 2
middle = 0.2 * torch.sin(2 * x[:, 0]) + 0.1 * x[:, 1]
y = middle + (0.02 + 0.03 * x[:, 2].abs()) * StudentT(3.0).sample((600,))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.heads = nn.Linear(64, 3)

    def forward(self, x):
        loc, scale, df = self.heads(self.trunk(x)).split(1, dim=1)
        if not fault("a_column_against_a_row"):
            loc, scale, df = loc[:, 0], scale[:, 0], df[:, 0]
        return StudentT(2 + F.softplus(df), loc, 1e-3 + F.softplus(scale))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(15):
    for i in torch.randperm(600).split(30):
        loss = -net(x[i]).log_prob(y[i]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())


def measure():
    return explained(net(x).loc.reshape(-1), middle)
