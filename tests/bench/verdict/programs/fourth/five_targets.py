"""Five responses of one trunk, a head each."""

import torch
from small import explained, fault
from torch import nn

N, TARGETS = 600, 5
x = torch.rand(N, 6) * 2 - 1
y = torch.stack([torch.sin(3 * x[:, k]) + x[:, k] * x[:, k + 1] for k in range(TARGETS)], 1)
y = (y - y.mean(0)) / y.std(0)
if fault("responses_in_thousands"):
    y = 20000.0 * y + 150000.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        head = nn.Sequential(nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 1))
        self.heads = nn.ModuleList(
            head
            if fault("one_head_five_times")
            else nn.Sequential(nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 1))
            for _ in range(TARGETS)
        )

    def forward(self, x):
        h = self.trunk(x)
        out = torch.cat([head(h) for head in self.heads], 1)
        return out.sigmoid() if fault("sigmoid_at_the_end") else out


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
criterion = nn.MSELoss()
for epoch in range(18):
    for i in torch.randperm(N).split(30):
        optimizer.zero_grad()
        loss = criterion(net(x[i]), y[i])
        loss.backward()
        optimizer.step()


def measure():
    return explained(net(x), y)
