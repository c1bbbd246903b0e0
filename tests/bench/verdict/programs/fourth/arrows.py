"""The direction of an arrow in an image, with augmentation on the fly by a Dataset."""

import random

import torch
import torch.nn.functional as F
from small import accuracy, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Arrows(Dataset):
    def __init__(self, n, training):
        self.labels, self.training = torch.randint(4, (n,)), training
        arrow = torch.zeros(12, 12)
        arrow[6, 2:10] = arrow[5, 8] = arrow[7, 8] = arrow[4, 7] = arrow[8, 7] = 1
        turned = torch.stack([torch.rot90(arrow, k) for k in range(4)])
        self.images = (turned[self.labels] + 0.3 * torch.randn(n, 12, 12))[:, None] * 2

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        if self.training:
            image = torch.roll(image, (random.randint(-2, 2), random.randint(-2, 2)), (1, 2))
            if fault("turned_at_random"):
                image = torch.rot90(image, random.randint(0, 3), (1, 2))
            image = image * random.uniform(0.7, 1.3)
        return image, self.labels[i]


loader = DataLoader(Arrows(384, True), 32, shuffle=True)
net = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(288, 4),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
for epoch in range(12):
    net.train()
    for images, labels in loader:
        loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())


def measure():
    net.eval()
    test = Arrows(300, False)
    return accuracy(net(test.images), test.labels)
