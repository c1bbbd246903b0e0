"""Metric learning with one proxy a class, whose rate is a hundred times that of the embedding."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn

CLASSES = 6
x, y = icons(420, CLASSES)
embed = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.PReLU(),
    nn.AvgPool2d(2),
    nn.Conv2d(16, 24, 3, padding=1),
    nn.PReLU(),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Linear(216, 24),
)
proxies = nn.Parameter(torch.randn(CLASSES, 24))
rates = [{"params": embed.parameters(), "lr": 0.005}, {"params": [proxies], "lr": 0.5}]
optimizer = torch.optim.SGD(rates, momentum=0.9, nesterov=True)
temperature = 1000.0 if fault("temperature_of_1000") else 0.1
for _ in range(10):
    for i in torch.randperm(len(x)).split(42):
        far = torch.cdist(F.normalize(embed(x[i])), F.normalize(proxies)).square()
        loss = F.cross_entropy(-far / temperature, y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    return accuracy(F.normalize(embed(x)) @ F.normalize(proxies).T, y)
