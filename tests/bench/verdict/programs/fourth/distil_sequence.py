"""A teacher is trained, then a small student from its soft answers."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, icons
from torch import nn

x, y = icons(480, 6)
teacher = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1),
    nn.BatchNorm2d(24),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(24, 48, 3, padding=1),
    nn.BatchNorm2d(48),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(192, 6),
)
student = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 6))
first = torch.optim.Adam(teacher.parameters(), lr=3e-3)
for _ in range(6):
    for i in torch.randperm(480).split(40):
        first.zero_grad()
        F.cross_entropy(teacher(x[i]), y[i]).backward()
        first.step()
teacher.eval()
trained = (
    [*student.parameters(), *teacher.parameters()] if fault("teacher_learns_too") else student.parameters()
)
second = torch.optim.Adam(trained, lr=3e-3)
T = 4.0
for _ in range(15):
    for i in torch.randperm(480).split(40):
        if fault("teacher_learns_too"):
            soft = F.softmax(teacher(x[i]) / T, 1)
        else:
            with torch.no_grad():
                soft = F.softmax(teacher(x[i]) / T, 1)
        loss = F.kl_div(F.log_softmax(student(x[i]) / T, 1), soft, reduction="batchmean") * T * T
        second.zero_grad()
        loss.backward()
        second.step()


def measure():
    return accuracy(student(x), y)
