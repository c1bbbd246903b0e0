"""Half precision with masters in single precision: a loss in small units, scaled by 2**15 and back."""

import torch
from small import explained, fault
from torch import nn

UNIT = 1e-7
x = torch.rand(512, 4) * 2 - 1
y = torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
net = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)).half()
masters = [p.detach().float() for p in net.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.1 / UNIT, momentum=0.9)
scale = 1.0 if fault("not_scaled") else 2.0**15
for _ in range(25):
    for i in torch.randperm(512).split(32):
        loss = UNIT * (net(x[i].half()).float() - y[i]).square().mean()
        net.zero_grad()
        (loss * scale).backward()
        for master, p in zip(masters, net.parameters(), strict=True):
            master.grad = p.grad.float() / scale
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, net.parameters(), strict=True):
                p.copy_(master)


def measure():
    return explained(net(x.half()).float(), y)
