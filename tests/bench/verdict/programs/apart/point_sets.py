"""Sets of points by a shared network and a maximum, with a learnt alignment."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault


def clouds(n=320, points=24):
    kinds = torch.randint(4, (n,))
    base = F.normalize(torch.randn(n, points, 3), dim=-1)
    stretch = torch.tensor([[1.0, 1, 1], [1, 1, 0.1], [1, 0.1, 0.1], [1.5, 0.7, 0.3]])
    return base * stretch[kinds][:, None] + 0.03 * torch.randn(n, points, 3), kinds


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.align = nn.Sequential(nn.Linear(3, 24), nn.ReLU())
        self.matrix = nn.Linear(24, 9)
        nn.init.zeros_(self.matrix.weight)
        self.matrix.bias.data = torch.eye(3).flatten()
        self.shared = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def forward(self, x):
        turn = self.matrix(self.align(x).amax(1)).view(-1, 3, 3)
        h = self.shared(x @ turn)
        if fault("maximum_over_the_batch"):
            return self.head(h + h.amax(0, keepdim=True)).mean(1)
        return self.head(h.amax(1))


points, kinds = clouds()
model = PointNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(14):
    for i in torch.randperm(320).split(32):
        loss = F.cross_entropy(model(points[i]), kinds[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
