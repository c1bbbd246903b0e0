"""A grid detector with a loss of three parts and a warm-up of rate and momentum by interpolation, as YOLO's trainers do."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from toy import fault


def scene(n=256, size=16):
    images, boxes, kinds = 0.2 * torch.randn(n, 3, size, size), torch.zeros(n, 4), torch.randint(3, (n,))
    for i in range(n):
        w, h = torch.randint(4, 8, (2,)).tolist()
        x, y = torch.randint(size - w, ()).item(), torch.randint(size - h, ()).item()
        images[i, kinds[i], y : y + h, x : x + w] += 1.5
        boxes[i] = torch.tensor([x + w / 2, y + h / 2, w, h]) / size
    return images, boxes, kinds


class Detector(nn.Module):
    def __init__(self, grid=4):
        super().__init__()
        self.grid = grid
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.SiLU(),
            nn.Conv2d(16, 32, 3, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.SiLU(),
        )
        self.box, self.cls, self.obj = nn.Conv2d(32, 4, 1), nn.Conv2d(32, 3, 1), nn.Conv2d(32, 1, 1)

    def forward(self, x):
        f = self.features(x)
        return self.box(f).sigmoid(), self.cls(f), self.obj(f)


def loss_parts(outputs, boxes, kinds, grid):
    box, cls, obj = outputs
    column, row = (boxes[:, :2] * grid).long().clamp(max=grid - 1).unbind(1)
    i = torch.arange(len(boxes))
    target = torch.zeros_like(obj)
    target[i, 0, row, column] = 1
    return (
        7.5 * F.smooth_l1_loss(box[i, :, row, column], boxes, beta=0.1),
        0.5 * F.cross_entropy(cls[i, :, row, column], kinds),
        F.binary_cross_entropy_with_logits(obj, target),
    )


images, boxes, kinds = scene()
model = Detector()
decayed = [p for p in model.parameters() if p.ndim > 1]
plain = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.SGD(
    [{"params": plain}, {"params": decayed, "weight_decay": 5e-4}], 0.05, 0.9, nesterov=True
)
warm = 10**7 if fault("warm_up_never_ends") else 30
for i in range(160):
    for group in optimizer.param_groups:
        group["lr"] = float(np.interp(i, [0, warm], [0.0 if fault("warm_up_never_ends") else 0.002, 0.05]))
        group["momentum"] = float(np.interp(i, [0, warm], [0.8, 0.9]))
    pick = torch.randint(len(images), (32,))
    parts = loss_parts(model(images[pick]), boxes[pick], kinds[pick], model.grid)
    optimizer.zero_grad()
    sum(parts).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
