"""Two views, a predictor and a stopped gradient: no negatives."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import clusters, fault

x, _ = clusters(512)
encoder = nn.Sequential(
    nn.Linear(20, 64),
    nn.BatchNorm1d(64),
    nn.ReLU(),
    nn.Linear(64, 32),
    *([] if fault("gradient_not_stopped") else [nn.BatchNorm1d(32, affine=False)]),
)
predictor = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))
optimizer = torch.optim.SGD(
    [*encoder.parameters(), *predictor.parameters()], lr=0.1, momentum=0.9, weight_decay=1e-4
)


def D(p, z):
    if not fault("gradient_not_stopped"):
        z = z.detach()
    return -F.cosine_similarity(p, z, dim=-1).mean()


for _ in range(16):
    for i in torch.randperm(512).split(64):
        z1, z2 = (encoder(x[i] + 0.4 * torch.randn(len(i), 20)) for _ in range(2))
        loss = 0.5 * D(predictor(z1), z2) + 0.5 * D(predictor(z2), z1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
