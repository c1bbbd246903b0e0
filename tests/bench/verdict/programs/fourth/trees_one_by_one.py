"""Values of small expressions by a net over their trees, one tree after the other, a step for each ten."""

import random

import torch
from small import explained, fault
from torch import nn


def make(depth):
    if depth == 0 or random.random() < 0.25:
        return random.randint(0, 5)
    return random.choice("+-"), make(depth - 1), make(depth - 1)


def value(tree):
    if isinstance(tree, int):
        return tree
    a, b = value(tree[1]), value(tree[2])
    return a + b if tree[0] == "+" else a - b


class TreeNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.leaf = nn.Embedding(6, width)
        self.join = nn.ModuleDict({"+": nn.Linear(2 * width, width), "-": nn.Linear(2 * width, width)})
        self.out = nn.Linear(width, 1)

    def state(self, tree):
        if isinstance(tree, int):
            return self.leaf(torch.tensor(tree))
        sides = torch.cat([self.state(tree[1]), self.state(tree[2])])
        return self.join[tree[0]](sides)

    def forward(self, tree):
        return self.out(self.state(tree))


trees = [make(3) for _ in range(200)]
values = torch.tensor([value(tree) for tree in trees]).float()
values = (values - values.mean()) / values.std()
net = TreeNet()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(6):
    order = torch.randperm(200)
    for batch in order.split(10):
        optimizer.zero_grad()
        for k in batch.tolist():
            loss = (net(trees[k]) - values[k]).square().sum() / len(batch)
            if not fault("backward_after_the_loop"):
                loss.backward()
        if fault("backward_after_the_loop"):
            loss.backward()
        optimizer.step()
    print(epoch, loss.item())


def measure():
    return explained(torch.cat([net(tree) for tree in trees])[:, None], values[:, None])
