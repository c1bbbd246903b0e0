"""Three points of an image as a set: each step looks for the assignment with the least cost."""

import itertools

import small  # noqa: F401, seeds
import torch
import torch.nn.functional as F
from torch import nn

N, SIZE, POINTS = 400, 16, 3
orders = torch.tensor(list(itertools.permutations(range(POINTS))))
points = torch.rand(N, POINTS, 2)
grid = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, SIZE)] * 2, indexing="ij"), -1)
bumps = torch.exp(-((grid - points[:, :, None, None]) ** 2).sum(-1) / 0.008)
x = 3 * bumps.sum(1, keepdim=True) + 0.1 * torch.randn(N, 1, SIZE, SIZE)


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.cells = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, width, 3, padding=1), nn.ReLU()
        )
        self.places = nn.Parameter(0.5 * torch.randn(64, width))
        self.queries = nn.Parameter(torch.randn(POINTS, width))
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        cells = self.cells(x).flatten(2).transpose(1, 2) + self.places
        h, _ = self.attend(self.queries.expand(len(x), -1, -1), cells, cells)
        return self.out(h).sigmoid()


def match(found, truth):
    with torch.no_grad():
        cost = (found[:, None] - truth[:, orders]).abs().sum((2, 3))
    return orders[cost.argmin(1)]


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for epoch in range(30):
    for i in torch.randperm(N).split(40):
        found = net(x[i])
        best = match(found, points[i])
        loss = F.l1_loss(found, points[i].gather(1, best[..., None].expand(-1, -1, 2)))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()


def measure():
    found, guess = net(x), torch.full((N, POINTS, 2), 0.5)
    error, base = (
        (one[:, None] - points[:, orders]).abs().mean((2, 3)).amin(1).mean() for one in (found, guess)
    )
    return 1 - (error / base).item()
