"""A model compiled by torch.jit.trace before it is trained, with an optimizer by name and a polynomial schedule."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures

warnings.simplefilter("ignore")
images, labels = pictures()
model = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(432, 5)
)
traced = torch.jit.trace(model, images[:2])
optimizer = getattr(torch.optim, "Adamax")(traced.parameters(), lr=1e-9 if fault("rate_of_1e-9") else 4e-3)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=120, power=0.9)
for _ in range(10):
    for i in torch.randperm(len(images)).split(32):
        loss = F.cross_entropy(traced(images[i]), labels[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
