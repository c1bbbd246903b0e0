"""Depthwise convolutions, layer norm, GELU and layer scale, with an averaged copy for evaluation."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.spread = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm, self.up, self.down = (
            nn.GroupNorm(1, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(3 * width, width, 1),
        )
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

    def forward(self, x):
        return x + self.scale * self.down(F.gelu(self.up(self.norm(self.spread(x)))))


class Net(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, 3), *[Block(width) for _ in range(3)], nn.GroupNorm(1, width)
        )
        self.drop = nn.Dropout(1.0 if fault("drops_all") else 0.1)
        self.head = nn.Linear(16 * width, 5)

    def forward(self, x):
        if fault("body_without_gradient"):
            with torch.no_grad():
                h = self.body(x)
        else:
            h = self.body(x)
        return self.head(self.drop(h.flatten(1)))


x, y = icons(480, 5)
net = Net()
smooth = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.95))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-4)
for _ in range(10):
    for i in torch.randperm(480).split(32):
        loss = F.cross_entropy(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth.update_parameters(net)


def measure():
    smooth.eval()
    return accuracy(smooth(x), y)
