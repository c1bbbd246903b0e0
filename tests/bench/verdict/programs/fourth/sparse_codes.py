"""Unrolled soft thresholding that learns sparse codes: most of them are zero, and should be."""

import torch
import torch.nn.functional as F
from small import explained, fault
from torch import nn

atoms = F.normalize(torch.randn(40, 24))
codes = torch.randn(600, 40) * (torch.rand(600, 40) < 0.08)
x = codes @ atoms + 0.02 * torch.randn(600, 24)


class LISTA(nn.Module):
    def __init__(self, n_codes=40, n_in=24, depth=4):
        super().__init__()
        self.into, self.again = nn.Linear(n_in, n_codes, bias=False), nn.Linear(n_codes, n_codes, bias=False)
        start = 30.0 if fault("threshold_of_30") else 0.1
        self.threshold = nn.Parameter(torch.full((depth, n_codes), start))
        self.out = nn.Linear(n_codes, n_in, bias=False)
        nn.init.eye_(self.again.weight)

    def forward(self, x):
        z = torch.zeros(len(x), self.again.in_features)
        for threshold in self.threshold:
            z = F.relu(self.into(x) + self.again(z) - threshold) - F.relu(
                -self.into(x) - self.again(z) - threshold
            )
        return self.out(z), z


net = LISTA()
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
for _ in range(20):
    for i in torch.randperm(len(x)).split(50):
        out, z = net(x[i])
        loss = (out - x[i]).square().mean() + 2e-3 * z.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def measure():
    return explained(net(x)[0], x)
