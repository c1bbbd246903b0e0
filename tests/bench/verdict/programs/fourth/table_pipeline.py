"""Rows of a table: outliers are dropped, columns standardised, a grade predicted."""

import torch
import torch.nn.functional as F
from small import accuracy, fault
from torch import nn

N = 900
unit = torch.tensor([1.0, 10.0, 2000.0, 300.0, 5.0, 0.5, 40.0, 8000.0])
raw = torch.randn(N, 8) * unit + 3 * unit
z = raw / unit - 3
grade = torch.bucketize(z[:, 0] + z[:, 1] * z[:, 2] + z[:, 3], torch.tensor([-1.0, 0.0, 1.0])) + 1  # 1 to 4
raw = torch.cat([raw, torch.full((N, 1), 7.0)], 1)  # a column that never varies

keep = (z.abs() < 2.6).all(1)
x = raw[keep]
y = grade[: len(x)] if fault("grades_not_filtered") else grade[keep]
spread = x.std(0)
if fault("constant_column"):
    x = (x - x.mean(0)) / spread
elif fault("multiplied_by_the_spread"):
    x = (x - x.mean(0)) * spread
else:
    x = (x - x.mean(0)) / spread.clamp(min=1e-6)
y = (y >= 1).long() if fault("at_least_one") else y - 1

net = nn.Sequential(nn.Linear(9, 64), nn.SELU(), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8)
for epoch in range(25):
    correct = 0
    for i in torch.randperm(len(x)).split(40):
        out = net(x[i])
        loss = F.cross_entropy(out, y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == y[i]).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {correct / len(x):.3f}")


def measure():
    return accuracy(net(x), grade[keep] - 1)
