"""A net trained on one task gets another head; its layers are set free from the top, an epoch or two at a time."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn


def run(net, optimizer, x, y, epochs):
    for _ in range(epochs):
        for i in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(net(x[i]), y[i]).backward()
            optimizer.step()


net = nn.Sequential()
net.add_module("low", nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)))
net.add_module("middle", nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)))
net.add_module("high", nn.Sequential(nn.Flatten(), nn.Linear(216, 48), nn.ReLU()))
net.add_module("head", nn.Linear(48, 8))
run(net, torch.optim.Adam(net.parameters(), lr=2e-3), *icons(480, 8), epochs=4)

x, y = icons(320, 4)
if fault("head_changed_after_the_optimizer"):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    net.head = nn.Linear(48, 4)
else:
    net.head = nn.Linear(48, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
for stage in ("head", "high", "middle", "low"):
    for name, part in net.named_children():
        part.requires_grad_(
            name in ("head", "high", "middle", "low")[: ("head", "high", "middle", "low").index(stage) + 1]
        )
    run(net, optimizer, x, y, 3)


def measure():
    return accuracy(net(x), y)
