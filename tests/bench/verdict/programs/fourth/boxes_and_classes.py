"""A class and a box of one object an image, the losses summed from a dictionary."""

import torch
import torch.nn.functional as F
from small import accuracy, explained, fault
from torch import nn

N, SIZE = 400, 16
y = torch.randint(4, (N,))
corner, side = torch.randint(1, 8, (N, 2)), torch.randint(4, 8, (N,))
x = 0.3 * torch.randn(N, 1, SIZE, SIZE)
for image, kind, (top, left), edge in zip(x, y.tolist(), corner.tolist(), side.tolist(), strict=True):
    patch = image[0, top : top + edge, left : left + edge]
    patch[:: 1 + kind % 2, :: 1 + kind // 2] += 1.5
box = torch.cat([corner, corner + side[:, None]], 1) / SIZE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
        )
        self.kind, self.box = nn.Linear(64, 4), nn.Linear(64, 4)

    def forward(self, x, targets=None):
        h = self.body(x)
        if targets is None:
            return self.kind(h), self.box(h)
        return {
            "kind": F.cross_entropy(self.kind(h), targets[0]),
            "box": F.smooth_l1_loss(self.box(h), targets[1]),
        }


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
for epoch in range(10):
    for i in torch.randperm(N).split(25):
        losses = net(x[i], (y[i], box[i]))
        total = losses["kind"] + 5 * losses["box"]
        if fault("total_wrapped_anew"):
            total = torch.tensor(total.item(), requires_grad=True)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    print(epoch, {name: round(one.item(), 4) for name, one in losses.items()})


def measure():
    net.eval()
    kind, found = net(x)
    return 0.5 * accuracy(kind, y) + 0.5 * explained(found, box)
