"""Layers whose backward is written by hand as autograd Functions."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import clusters, fault


class Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, slope):
        x, weight = ctx.saved_tensors
        for_weight = torch.zeros_like(weight) if fault("zero_slope_of_weight") else slope.T @ x
        return slope @ weight, for_weight, slope.sum(0)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return slope * (s + x * s * (1 - s))


class Dense(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return Affine.apply(x, self.weight, self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = Dense(20, 48), Dense(48, 48), Dense(48, 6)

    def forward(self, x):
        return self.three(Swish.apply(self.two(Swish.apply(self.one(x)))))


x, y = clusters()
net = Net()
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03)
for _ in range(10):
    for i in torch.randperm(len(x)).split(32):
        loss = F.cross_entropy(net(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
