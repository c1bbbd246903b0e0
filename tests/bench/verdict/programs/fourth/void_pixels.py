"""Segmentation in which the rim of each object is void and left out of the loss."""

import torch
import torch.nn.functional as F
from small import accuracy, fault
from torch import nn

N, SIZE, VOID = 256, 16, 255
row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
centre = 5 + 6 * torch.rand(N, 2, 1, 1)
far = ((row - centre[:, 0]) ** 2 + (column - centre[:, 1]) ** 2).sqrt()
kind = torch.randint(1, 4, (N,))[:, None, None]
truth = (far < 3) * kind
targets = torch.where((far - 3).abs() < 0.4, VOID, truth)
images = torch.eye(4)[truth].permute(0, 3, 1, 2)[:, 1:] + 0.5 * torch.randn(N, 3, SIZE, SIZE)


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Conv2d(3, width, 3, padding=1)
        self.deep = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Conv2d(2 * width, 4, 1)

    def forward(self, x):
        high = F.relu(self.down(x))
        low = F.relu(self.deep(F.max_pool2d(high, 2)))
        return self.out(torch.cat([high, F.relu(self.up(low))], 1))


net = UNet()
if fault("the_ground_is_void"):
    targets = torch.where(targets == VOID, 0, targets)
criterion = nn.CrossEntropyLoss(ignore_index=0 if fault("the_ground_is_void") else VOID)
optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
for _ in range(10):
    for i in torch.randperm(N).split(16):
        loss = criterion(net(images[i]), targets[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    flat = net(images).permute(0, 2, 3, 1).reshape(-1, 4)
    return accuracy(flat, truth.flatten())
