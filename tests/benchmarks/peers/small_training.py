"""Train a small network of 12 layers on batches of 64. Takes the number of steps."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(1024, 32)
labels = x[:, :10].argmax(1)
hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), *hidden, nn.Linear(64, 10), nn.LogSoftmax(1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(int(sys.argv[1])):
    rows = torch.randint(len(x), (64,))
    loss = nn.functional.nll_loss(model(x[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
