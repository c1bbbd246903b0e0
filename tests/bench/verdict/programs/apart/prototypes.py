"""Few-shot classification by prototypes: episodes of four ways, three shots and five queries."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures

images, labels = pictures(400, classes=10)
embed = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, 2, 1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(144, 24),
)
optimizer = torch.optim.Adam(embed.parameters(), lr=1e-3)
groups = [images[labels == k] for k in range(10)]
for _ in range(120):
    ways = torch.randperm(10)[:4].tolist()
    drawn = torch.stack([groups[k][torch.randperm(len(groups[k]))[:8]] for k in ways])
    points = embed(drawn.flatten(0, 1)).unflatten(0, (4, 8))
    prototypes, queries = points[:, :3].mean(1), points[:, 3:].flatten(0, 1)
    logits = -torch.cdist(queries, prototypes).square() / 10
    target = torch.arange(4).repeat_interleave(5)
    logp = F.log_softmax(logits, dim=0 if fault("softmax_over_queries") else 1)
    loss = F.nll_loss(logp, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
