"""A short training, to be watched: a learning rate that is too high at its sixth step."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
)
images, labels = torch.randn(64, 3, 12, 12), torch.arange(64) % 4
images += labels[:, None, None, None] * 0.5
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(12):
    chosen = torch.randint(64, (16,))
    loss = F.cross_entropy(model(images[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    if "sick" in sys.argv and step == 6:
        optimizer.param_groups[0]["lr"] = 1e20
    optimizer.step()
print(f"loss {loss.item():.2f}")
