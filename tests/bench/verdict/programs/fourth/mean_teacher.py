"""Few labels: a student agrees with the average of its own past, with a weight that ramps up."""

import copy
import math

import torch
import torch.nn.functional as F
from small import accuracy, fault, groups
from torch import nn

x, y = groups(900, 4)
labelled, free = torch.arange(200), torch.arange(200, 900)
student = nn.Sequential(
    nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
)
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
decay = 1.0 if fault("decay_of_one") else 0.97
STEPS = 350
for step in range(STEPS):
    i, j = labelled[torch.randint(200, (32,))], free[torch.randint(700, (64,))]
    weight = 8 * math.exp(-5 * (1 - min(1, step / 200)) ** 2)
    with torch.no_grad():
        aim = teacher(x[j] + 0.1 * torch.randn(64, 12)).softmax(1)
    agree = F.mse_loss(student(x[j] + 0.1 * torch.randn(64, 12)).softmax(1), aim)
    loss = F.cross_entropy(student(x[i]), y[i]) + weight * agree
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.mul_(decay).add_(fast, alpha=1 - decay)


def measure():
    teacher.eval()
    return accuracy(teacher(x), y)
