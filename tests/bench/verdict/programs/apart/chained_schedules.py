"""Warm-up then warm restarts by SequentialLR, and a second group under a plateau schedule by validation."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as ls
from toy import fault, surface

x, y = surface(640)
train, val = (x[:512], y[:512]), (x[512:], y[512:])
body, head = nn.Sequential(nn.Linear(5, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()), nn.Linear(64, 1)
optimizer, second = torch.optim.RAdam(body.parameters(), lr=5e-3), torch.optim.SGD(head.parameters(), lr=0.02)
warm = ls.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
if fault("linear_to_zero_by_step"):
    schedule, second_schedule = (
        ls.LinearLR(optimizer, 1.0, 0.0, total_iters=15),
        ls.LinearLR(second, 1.0, 0.0, total_iters=15),
    )
else:
    schedule = ls.SequentialLR(
        optimizer, [warm, ls.CosineAnnealingWarmRestarts(optimizer, 60, eta_min=1e-4)], [20]
    )
    second_schedule = None
plateau = ls.ReduceLROnPlateau(second, factor=0.5, patience=3)
for _ in range(16):
    for i in torch.randperm(512).split(32):
        loss = F.smooth_l1_loss(head(body(train[0][i])), train[1][i])
        optimizer.zero_grad()
        second.zero_grad()
        loss.backward()
        optimizer.step()
        second.step()
        schedule.step()
        if second_schedule is not None:
            second_schedule.step()
    with torch.no_grad():
        error = F.smooth_l1_loss(head(body(val[0])), val[1])
    if second_schedule is None:
        plateau.step(error)
