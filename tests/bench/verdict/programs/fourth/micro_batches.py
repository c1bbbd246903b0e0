"""Images one at a time, sixteen to a step, normalised within each image."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn

EVERY = 16
x, y = icons(320, 4)


net = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1),
    nn.GroupNorm(1, 12),
    nn.ReLU(),
    nn.MaxPool2d(3),
    nn.Conv2d(12, 24, 3, padding=1),
    nn.GroupNorm(1, 24),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(384, 4),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
order = [k for _ in range(7) for k in torch.randperm(len(x)).tolist()]
for count, k in enumerate(order, 1):
    loss = F.cross_entropy(net(x[k : k + 1]), y[k : k + 1])
    (loss if fault("sum_of_sixteen") else loss / EVERY).backward()
    if count % EVERY == 0:
        optimizer.step()
        optimizer.zero_grad()


def measure():
    net.eval()
    return accuracy(net(x), y)
