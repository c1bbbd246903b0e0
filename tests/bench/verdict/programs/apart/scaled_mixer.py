"""An MLP mixer under autocast with a gradient scaler, unscaled before it is clipped."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures


class Mixer(nn.Module):
    def __init__(self, places=9, dim=32):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.channels = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 4, 4)
        self.mixers = nn.Sequential(Mixer(), Mixer())
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.mixers(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


images, labels = pictures(320)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for _ in range(12):
    for i in torch.randperm(len(images)).split(32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(images[i]), labels[i])
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        if not fault("clipped_before_unscaled"):
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
