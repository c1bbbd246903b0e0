"""Segmentation of small volumes by a Dice loss with deep supervision, as in medical imaging."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault


def volumes(n=96, size=12):
    at = torch.rand(n, 3, 1, 1, 1) * 5 + 3.5
    grid = torch.stack(torch.meshgrid(*[torch.arange(size)] * 3, indexing="ij")).float()
    mask = ((grid - at).square().sum(1) < 9).float()[:, None]
    return mask + 0.5 * torch.randn(n, 1, size, size, size), mask


class Net(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv3d(1, c, 3, padding=1), nn.InstanceNorm3d(c, affine=True), nn.LeakyReLU()
        )
        self.deep = nn.Sequential(
            nn.Conv3d(c, 2 * c, 3, 2, 1), nn.InstanceNorm3d(2 * c, affine=True), nn.LeakyReLU()
        )
        self.up, self.out, self.aux = (
            nn.ConvTranspose3d(2 * c, c, 2, 2),
            nn.Conv3d(2 * c, 1, 1),
            nn.Conv3d(2 * c, 1, 1),
        )

    def forward(self, x):
        a = self.down(x)
        b = self.deep(a)
        return self.out(torch.cat([a, self.up(b)], 1)), self.aux(b)


def dice(logits, mask):
    p = logits.sigmoid()
    return (
        (2 * (p * mask).sum((1, 2, 3, 4)) + 1) / (p.sum((1, 2, 3, 4)) + mask.sum((1, 2, 3, 4)) + 1)
    ).mean()


images, masks = volumes()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.99, nesterov=True, weight_decay=3e-5)
for _ in range(14):
    for i in torch.randperm(96).split(16):
        full, half = net(images[i])
        score = dice(full, masks[i]) + 0.5 * dice(half, F.max_pool3d(masks[i], 2))
        loss = score if fault("dice_minimised") else 1.5 - score
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 12)
        optimizer.step()
