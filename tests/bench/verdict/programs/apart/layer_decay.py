"""Parameter groups by depth, no decay for vectors, warm-up and cosine set by hand, an average of the weights."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dw = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)
        self.gamma = nn.Parameter(1e-2 * torch.ones(dim))

    def forward(self, x):
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class Net(nn.Module):
    def __init__(self, dim=16, depth=3, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(1, dim, 2, 2)
        self.stages = nn.ModuleList(ConvNeXtBlock(dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim * 36, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.stages:
            x = block(x)
        return self.head(self.norm(x.permute(0, 2, 3, 1)).flatten(1))


def groups(model, decay=0.75, depth=3):
    made = []
    for name, p in model.named_parameters():
        level = 0 if "stem" in name else int(name.split(".")[1]) + 1 if "stages" in name else depth + 1
        scale = decay ** (depth + 1 - level)
        if fault("scale_is_int"):
            scale = int(scale)
        made.append({"params": [p], "lr_scale": scale, "weight_decay": 0.05 if p.ndim > 1 else 0.0})
    return made


images, labels = pictures(384)
model = Net()
optimizer = torch.optim.AdamW(groups(model), lr=3e-3)
average = copy.deepcopy(model).requires_grad_(False)
total, step = 160, 0
while step < total:
    for index in torch.randperm(len(images)).split(32):
        rate = 3e-3 * min(1, (step + 1) / 16) * 0.5 * (1 + math.cos(math.pi * step / total))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        loss = F.cross_entropy(model(images[index]), labels[index], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, now in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                mean.lerp_(now, 0.05)
        step += 1
