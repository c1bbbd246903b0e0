"""Key points from heat maps by a soft argmax, trained by their distance in pixels."""

import torch
from torch import nn
from toy import fault


class Points(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(12, 2, 1),
        )
        self.register_buffer("axis", torch.arange(size).float())

    def forward(self, x):
        maps = self.net(x)
        chance = maps.flatten(2).softmax(-1).view_as(maps)
        return torch.stack([(chance.sum(2) * self.axis).sum(-1), (chance.sum(3) * self.axis).sum(-1)], -1)


def scenes(n=256, size=16):
    images, points = 0.2 * torch.randn(n, 1, size, size), torch.zeros(n, 2, 2)
    for image, pair in zip(images, points, strict=True):
        for k in range(2):
            x, y = torch.randint(2, size - 2, (2,)).tolist()
            image[0, y - 1 : y + 2, x] += 2 if k else -2
            image[0, y, x - 1 : x + 2] += 2 if k else -2
            pair[k] = torch.tensor([x, y])
    return images, points


images, points = scenes()
if fault("points_of_other_images"):
    points = points[torch.randperm(len(points))]
model = Points()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(14):
    for i in torch.randperm(256).split(32):
        loss = (model(images[i]) - points[i]).norm(dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
