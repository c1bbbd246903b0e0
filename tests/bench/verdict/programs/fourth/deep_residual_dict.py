"""Residual blocks kept by name, a trainer that keeps the best weights."""

import copy

import torch
import torch.nn.functional as F
from small import accuracy, fault, groups
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.two(F.gelu(self.one(F.layer_norm(x, x.shape[1:]))))


class Net(nn.Module):
    def __init__(self, width=40, depth=4):
        super().__init__()
        self.stem, self.head = nn.Linear(12, width), nn.Linear(width, 6)
        blocks = {f"block{k}": Block(width) for k in range(depth)}
        self.blocks = blocks if fault("blocks_in_a_dict") else nn.ModuleDict(blocks)

    def forward(self, x):
        h = self.stem(x)
        for name in self.blocks:
            h = self.blocks[name](h)
        return self.head(h)


class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
        self.best = 1.0 if fault("nothing_is_better") else 0.0
        self.kept = copy.deepcopy(net.state_dict())

    def fit(self, x, y, held, epochs):
        for _ in range(epochs):
            for i in torch.randperm(len(x)).split(32):
                if fault("optimizer_made_anew"):
                    self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)
                self.optimizer.zero_grad()
                F.cross_entropy(self.net(x[i]), y[i]).backward()
                self.optimizer.step()
            self.keep(held)
        self.net.load_state_dict(self.kept)

    @torch.no_grad()
    def keep(self, held):
        score = (self.net(held[0]).argmax(1) == held[1]).float().mean().item()
        if score > self.best:
            self.best, self.kept = score, copy.deepcopy(self.net.state_dict())
        else:  # go on from the best
            self.net.load_state_dict(self.kept)


x, y = groups(700, 6)
net = Net()
Trainer(net).fit(x[:600], y[:600], (x[600:], y[600:]), 14)


def measure():
    return accuracy(net(x), y)
