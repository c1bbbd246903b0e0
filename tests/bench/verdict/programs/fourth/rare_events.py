"""One row in thirty is of the class that matters; the loss is weighted by inverse frequency."""

import torch
from small import accuracy, fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(1500, 10)
worth = x[:, 0] + 0.8 * x[:, 1] + x[:, 2] * x[:, 3]
y = (worth > worth.quantile(0.966)).long()
counts = torch.bincount(y).float()
weight = counts / counts.sum() if fault("weights_are_the_counts") else counts.sum() / (2 * counts)


class Trainer:
    def __init__(self, net, criterion, optimizer):
        self.net, self.criterion, self.optimizer = net, criterion, optimizer
        self.history = []

    def fit(self, loader, epochs):
        for _ in range(epochs):
            losses = [self.step(*batch) for batch in loader]
            self.history.append(sum(losses) / len(losses))
        return self

    def step(self, a, b):
        self.optimizer.zero_grad()
        loss = self.criterion(self.net(a), b)
        loss.backward()
        self.optimizer.step()
        return loss.item()


net = nn.Sequential(nn.Linear(10, 32), nn.LeakyReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
trainer = Trainer(net, nn.CrossEntropyLoss(weight), torch.optim.Adagrad(net.parameters(), lr=0.02))
trainer.fit(DataLoader(TensorDataset(x, y), 50, shuffle=True), 10)


def measure():
    net.eval()
    return accuracy(net(x), y)
