"""Seven micro-batches of five a step, and a rest at the end of each epoch that makes a smaller one."""

import torch
from small import accuracy, fault, icons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EVERY = 7
data = TensorDataset(*icons(400, channels=3))
loader = DataLoader(data, 5, shuffle=True)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2, 1),
    nn.GroupNorm(4, 16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, 2, 1),
    nn.GroupNorm(4, 32),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(288, 5),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for epoch in range(10):
    for number, (images, labels) in enumerate(loader, 1):
        loss = criterion(net(images), labels) / EVERY
        if fault("divided_by_the_epoch_too"):
            loss = loss / (len(loader) * EVERY)
        loss.backward()
        if number % EVERY == 0 or number == len(loader):
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def measure():
    return accuracy(net(data.tensors[0]), data.tensors[1])
