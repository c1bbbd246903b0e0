"""Documents of a query are ranked by pairs; the pairs of a query are weighted by what their exchange would change."""

import small  # noqa: F401, seeds
import torch
import torch.nn.functional as F
from torch import nn

QUERIES, DOCS = 120, 10
features = torch.randn(QUERIES, DOCS, 8)
worth = features[..., 0] + features[..., 1] * features[..., 2] + 0.3 * torch.randn(QUERIES, DOCS)
grade = torch.bucketize(worth, torch.tensor([-1.0, 0.0, 1.0])).float()
net = nn.Sequential(nn.Linear(8, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 1))
optimizer = torch.optim.NAdam(net.parameters(), lr=4e-3)
for _ in range(15):
    for q in torch.randperm(QUERIES).split(8):
        score = net(features[q]).squeeze(-1)
        apart = score[:, :, None] - score[:, None, :]
        place = 1 + score.detach().argsort(1, descending=True).argsort(1).float()
        gain = (2 ** grade[q][:, :, None] - 2 ** grade[q][:, None, :]).abs()
        discount = (1 / torch.log2(1 + place)[:, :, None] - 1 / torch.log2(1 + place)[:, None, :]).abs()
        better = (grade[q][:, :, None] > grade[q][:, None, :]).float()
        loss = (F.softplus(-apart) * better * gain * discount).sum((1, 2)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    score = net(features).squeeze(-1)
    pairs = grade[:, :, None] > grade[:, None, :]
    return 2 * (score[:, :, None] > score[:, None, :])[pairs].float().mean().item() - 1
