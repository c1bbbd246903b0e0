"""A fit in double precision by Rprop on the whole data set, as physicists write it."""

import torch
from torch import nn
from toy import fault

torch.set_default_dtype(torch.float64)
x = torch.linspace(-2, 2, 200).reshape(-1, 1)
y = torch.exp(-(x**2)) * torch.cos(4 * x) + 0.02 * torch.randn(200, 1)
if fault("broadcast"):
    y = y.squeeze(1)
model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
for epoch in range(200):
    optimizer.zero_grad()
    residual = model(x) - y
    loss = (residual**2).mean()
    loss.backward()
    optimizer.step()
    if epoch % 50 == 0:
        print(epoch, float(loss))
