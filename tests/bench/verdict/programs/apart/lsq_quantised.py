"""Training aware of quantisation: fake four-bit weights and activations with learnt step sizes, straight through."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, slope):
        return slope


class Quantiser(nn.Module):
    def __init__(self, low, high, start):
        super().__init__()
        self.low, self.high = low, high
        self.log_step = nn.Parameter(torch.tensor(float(start)).log())

    def forward(self, x):
        step = self.log_step.exp()
        scaled = (x / step).clamp(self.low, self.high)
        rounded = scaled.round() if fault("no_straight_through") else Round.apply(scaled)
        return rounded * step


class QConv(nn.Conv2d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.qw = Quantiser(-8, 7, 0.1)

    def forward(self, x):
        return self._conv_forward(x, self.qw(self.weight), self.bias)


images, labels = pictures()
model = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1),
    nn.BatchNorm2d(12),
    nn.ReLU(),
    Quantiser(0, 15, 0.3),
    QConv(12, 16, 3, 2, 1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    Quantiser(0, 15, 0.3),
    nn.Flatten(),
    nn.Linear(576, 5),
)
steps = [p for n, p in model.named_parameters() if n.endswith("log_step")]
rest = [p for n, p in model.named_parameters() if not n.endswith("log_step")]
optimizer = torch.optim.SGD([{"params": rest}, {"params": steps, "lr": 1e-3}], lr=0.02, momentum=0.9)
for _ in range(12):
    for i in torch.randperm(len(images)).split(32):
        loss = F.cross_entropy(model(images[i]), labels[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
