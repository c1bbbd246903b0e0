"""Errors that go back through fixed random weights: the gradients are not those of the loss, and need not be."""

import torch
import torch.nn.functional as F
from small import accuracy, groups
from torch import nn


class Feedback(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, fixed):
        ctx.save_for_backward(x, fixed)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, error):
        x, fixed = ctx.saved_tensors
        return error @ fixed, error.T @ x, error.sum(0), None


class Layer(nn.Linear):
    def __init__(self, n_in, n_out):
        super().__init__(n_in, n_out)
        self.register_buffer("fixed", torch.randn(n_out, n_in) / n_in**0.5)

    def forward(self, x):
        return Feedback.apply(x, self.weight, self.bias, self.fixed)


x, y = groups(640, 4)
net = nn.Sequential(Layer(12, 80), nn.Tanh(), Layer(80, 80), nn.Tanh(), Layer(80, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for _ in range(20):
    for i in torch.randperm(640).split(32):
        optimizer.zero_grad()
        F.cross_entropy(net(x[i]), y[i]).backward()
        optimizer.step()


def measure():
    return accuracy(net(x), y)
