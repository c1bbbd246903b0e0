"""Train, prune by magnitude in rounds with torch.nn.utils.prune, and train on."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from toy import clusters, fault

x, y = clusters(480)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
layers = [layer for layer in net if isinstance(layer, nn.Linear)]
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def epoch():
    for i in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(net(x[i]), y[i]).backward()
        optimizer.step()


if fault("mask_of_zeros"):
    prune.l1_unstructured(layers[1], "weight", amount=1.0)
for _ in range(4):
    epoch()
for _ in range(3):
    for layer in layers[:2]:
        prune.l1_unstructured(layer, "weight", amount=0.3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for _ in range(3):
        epoch()
for layer in layers[:2]:
    prune.remove(layer, "weight")
