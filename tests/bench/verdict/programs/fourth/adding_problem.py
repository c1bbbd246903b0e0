"""The sum of two marked numbers of a sequence, by a recurrent cell written out."""

import torch
from small import explained, fault
from torch import nn

N, LENGTH = 600, 10
numbers = torch.rand(N, LENGTH)
marks = torch.zeros(N, LENGTH).scatter(1, torch.rand(N, LENGTH - 1).argsort(1)[:, :2], 1.0)
x, y = torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True)


class Cell(nn.Module):
    def __init__(self, n_in, width):
        super().__init__()
        self.width = width
        self.gates, self.new = nn.Linear(n_in + width, 2 * width), nn.Linear(n_in + width, width)

    def forward(self, x, h):
        keep, reset = self.gates(torch.cat([x, h], 1)).sigmoid().chunk(2, 1)
        return keep * h + (1 - keep) * self.new(torch.cat([x, reset * h], 1)).tanh()


class Net(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.cell, self.out = Cell(2, width), nn.Linear(width, 1)

    def forward(self, x):
        h = torch.zeros(len(x), self.cell.width)
        for time in range(x.shape[1]):
            if fault("state_of_zeros_each_time"):
                h = torch.zeros(len(x), self.cell.width)
            h = self.cell(x[:, time], h)
        return self.out(h)


net = Net()
decay = 1.0 if fault("decay_of_one_in_the_gradient") else 1e-6
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=decay)
criterion = nn.MSELoss()
for epoch in range(25):
    for i in torch.randperm(N).split(40):
        loss = criterion(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        optimizer.step()


def measure():
    return explained(net(x), y)
