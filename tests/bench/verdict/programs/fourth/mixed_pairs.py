"""Mixup and cut-out patches: no image is of one class, so the loss stays far from zero."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn

CLASSES = 5
x, y = icons(480, CLASSES, channels=3)
soft = F.one_hot(y, CLASSES).float()
beta = torch.distributions.Beta(1.0, 1.0)


def mix(a, b):
    other, share = torch.randperm(len(a)), beta.sample().item()
    if torch.rand(()) < 0.5:
        mixed = share * a + (1 - share) * a[other]
    else:
        mixed, rows = a.clone(), round((1 - share) * a.shape[2])
        mixed[:, :, :rows] = a[other, :, :rows]
        share = 1 - rows / a.shape[2]
    return mixed, share * b + (1 - share) * b[other]


net = nn.Sequential(
    nn.Conv2d(3, 24, 3, padding=1),
    nn.BatchNorm2d(24),
    nn.SiLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(24, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.SiLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(288, CLASSES),
)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.02)
schedule = torch.optim.lr_scheduler.CyclicLR(
    optimizer, 5e-4, 5e-3, step_size_up=30, mode="triangular2", cycle_momentum=False
)
for _ in range(14):
    for i in torch.randperm(480).split(32):
        images, targets = mix(x[i], soft[i])
        axis = 0 if fault("over_the_batch") else 1
        loss = -(targets * net(images).log_softmax(axis)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def measure():
    net.eval()
    return accuracy(net(x), y)
