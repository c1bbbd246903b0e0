"""Weights in bfloat16; an optimizer of masters in single precision, copied over after each step."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, groups
from torch import nn

x, y = groups(640, 5)
net = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5)).bfloat16()


class Masters:
    def __init__(self, net):
        self.parts = list(net.parameters())
        self.masters = [nn.Parameter(p.detach().float()) for p in self.parts]
        own = self.parts if fault("no_masters") else self.masters
        self.optimizer = torch.optim.SGD(own, lr=1e-3, momentum=0.9, nesterov=True)

    def step(self, loss):
        for p in self.parts:
            p.grad = None
        loss.backward()
        for master, p in zip(self.masters, self.parts, strict=True):
            master.grad = p.grad.float()
        self.optimizer.step()
        if not fault("no_masters") and not fault("masters_never_copied"):
            torch._foreach_copy_([p.data for p in self.parts], [m.data for m in self.masters])


trainer = Masters(net)
for epoch in range(60):
    for i in torch.randperm(640).split(64):
        loss = F.cross_entropy(net(x[i].bfloat16()).float(), y[i])
        trainer.step(loss)
    if epoch % 10 == 0:
        print(epoch, loss.item())


def measure():
    return accuracy(net(x.bfloat16()).float(), y)
