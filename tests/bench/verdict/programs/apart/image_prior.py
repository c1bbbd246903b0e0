"""One noisy image is fitted by a network from fixed noise, and stopped early."""

import torch
from torch import nn
from toy import fault

goal = torch.zeros(1, 1, 24, 24)
goal[..., 6:18, 8:16] = 0.8
goal = goal + 0.1 * torch.randn_like(goal)
start = 0.1 * torch.randn(1, 8, 12, 12)


class Clamp(nn.Module):
    def forward(self, x):
        return (x - 9).clamp(0, 1)


net = nn.Sequential(
    nn.Conv2d(8, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.LeakyReLU(0.2),
    nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.LeakyReLU(0.2),
    nn.Conv2d(16, 1, 1),
    Clamp() if fault("clamped_out") else nn.Sigmoid(),
)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(160):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(start + 0.03 * torch.randn_like(start)), goal)
    loss.backward()
    optimizer.step()
