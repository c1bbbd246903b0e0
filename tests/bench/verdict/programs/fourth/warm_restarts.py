"""Cosine with warm restarts: the loss jumps each time the rate does."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts

EPOCHS, BATCH = 15, 32
x, y = icons(480, 6)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.relu(x + self.conv(x))


net = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1), Block(16), Block(16), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 6)
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4, nesterov=True)
if fault("epochs_as_t_max_by_step"):
    schedule = CosineAnnealingLR(optimizer, T_max=EPOCHS)
else:
    schedule = CosineAnnealingWarmRestarts(optimizer, T_0=EPOCHS, T_mult=2)
for epoch in range(EPOCHS):
    for i in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[i]), y[i])
        loss.backward()
        optimizer.step()
        schedule.step()
    print(epoch, loss.item())


def measure():
    net.eval()
    return accuracy(net(x), y)
