"""Adversarial training: a few signed steps on the input before each step on the weights."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures

images, labels = pictures()
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(576, 48), nn.ReLU(), nn.Linear(48, 5)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def attack(x, y, size=0.15, steps=3):
    delta = torch.zeros_like(x).uniform_(-size, size).requires_grad_(True)
    for _ in range(steps):
        F.cross_entropy(model(x + delta), y).backward()
        delta.data = (delta + size / 2 * delta.grad.sign()).clamp(-size, size).data
        delta.grad.zero_()
    return (x + delta).detach()


for _ in range(10):
    for i in torch.randperm(len(images)).split(32):
        model.eval()
        x = attack(images[i], labels[i])
        model.train()
        if not fault("attack_not_cleared"):
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels[i])
        loss.backward()
        optimizer.step()
