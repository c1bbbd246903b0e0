"""Rare positives: a weighted sampler and a focal loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from toy import fault


def focal(logits, targets, gamma=2.0, alpha=0.5):
    bce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p = torch.exp(-bce)
    return (torch.where(targets > 0, alpha, 1 - alpha) * (1 - p) ** gamma * bce).mean()


x = torch.randn(900, 12)
y = ((x[:, 0] + x[:, 1] * x[:, 2]) > 1.9).float()
counts = torch.bincount(y.long())
weights = (1.0 / counts)[y.long()]
if fault("weights_by_wrong_index"):
    weights = (y == 0).double()
sampler = WeightedRandomSampler(weights, 640)
loader = DataLoader(TensorDataset(x, y), 32, sampler=sampler)
net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, amsgrad=True)
for _ in range(10):
    for a, b in loader:
        loss = focal(net(a).squeeze(1), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
