"""Sharpness-aware minimisation: an optimizer of one's own with two passes a step."""

import torch
import torch.nn.functional as F
from small import accuracy, icons
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, adaptive=False, **kwargs):
        super().__init__(params, {"rho": rho, "adaptive": adaptive, **kwargs})
        self.base = base(self.param_groups, **kwargs)

    @torch.no_grad()
    def climb(self):
        norm = self._norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                size = p.abs() if group["adaptive"] else 1.0
                p.add_(size * size * p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()

    def _norm(self):
        return torch.stack(
            [
                ((p.abs() if group["adaptive"] else 1.0) * p.grad).norm()
                for group in self.param_groups
                for p in group["params"]
            ]
        ).norm()

    def step(self, closure):
        self.climb()
        with torch.enable_grad():
            closure()
        self.descend()


x, y = icons(400)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, 2, 1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(288, 5),
)
optimizer = SAM(net.parameters(), torch.optim.SGD, rho=0.5, adaptive=True, lr=0.05, momentum=0.9)
for _ in range(12):
    for i in torch.randperm(len(x)).split(40):

        def again(i=i):
            loss = F.cross_entropy(net(x[i]), y[i])
            loss.backward()
            return loss

        again()
        optimizer.step(again)


def measure():
    return accuracy(net(x), y)
