"""Competitive Hebbian learning without any gradient, and a readout by least squares."""

import torch
from small import accuracy, groups
from torch import nn


class Winners(nn.Module):
    def __init__(self, n_in, n_units):
        super().__init__()
        self.register_buffer("weight", torch.randn(n_units, n_in))
        self.register_buffer("bias", torch.zeros(n_units))

    def forward(self, x):
        return -torch.cdist(x, self.weight)

    @torch.no_grad()
    def learn(self, x, rate):
        wins = nn.functional.one_hot((self(x) + self.bias).argmax(1), len(self.weight)).float()
        counts = wins.sum(0)
        means = wins.T @ x / counts.clamp(min=1)[:, None]
        self.weight += rate * (counts > 0)[:, None] * (means - self.weight)
        self.bias += 0.05 * (1 / len(self.weight) - counts / len(x)) * len(self.weight)


x, y = groups(800)
layer = Winners(12, 40)
for step in range(240):
    batch = x[torch.randint(len(x), (64,))]
    layer.learn(batch, 0.3 * (1 - step / 240))
    if step % 40 == 0:
        print(step, f"distance to the winner {-layer(x).amax(1).mean():.3f}")

features = torch.softmax(4 * layer(x), 1)
readout = torch.linalg.lstsq(features, nn.functional.one_hot(y, 4).float()).solution


def measure():
    return accuracy(features @ readout, y)
