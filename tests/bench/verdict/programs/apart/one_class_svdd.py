"""One-class description: embeddings drawn to a fixed centre that was measured before training, no biases."""

import torch
from torch import nn
from toy import fault, pictures

images, labels = pictures(480, classes=4)
usual = images[labels == 0]
bias = fault("bias_and_random_centre")
net = nn.Sequential(
    nn.Conv2d(1, 12, 3, 2, 1, bias=bias),
    nn.LeakyReLU(),
    nn.Flatten(),
    nn.Linear(432, 32, bias=bias),
    nn.LeakyReLU(),
    nn.Linear(32, 8, bias=bias),
)
with torch.no_grad():
    centre = net(usual).mean(0)
    centre = torch.where(centre.abs() < 0.1, 0.1 * centre.sign(), centre)
    if bias:
        centre = torch.randn(8)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3 if bias else 5e-4, weight_decay=1e-6)
for _ in range(60 if bias else 25):
    for x in usual[torch.randperm(len(usual))].split(32):
        loss = (net(x) - centre).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
