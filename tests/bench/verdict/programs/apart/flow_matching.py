"""Conditional flow matching: a velocity field regressed on straight lines from noise to data."""

import torch
from torch import nn
from toy import fault, two_moons


class Velocity(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(4))
        self.net = nn.Sequential(
            nn.Linear(10, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, x, t):
        angles = t * self.frequencies * torch.pi
        return self.net(torch.cat([x, angles.sin(), angles.cos()], 1))


data = 2 * two_moons(1024)
field = Velocity()
optimizer = torch.optim.AdamW(field.parameters(), lr=3e-3, betas=(0.9, 0.95))
average = torch.optim.swa_utils.AveragedModel(
    field, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98)
)
for step in range(300):
    end = data[torch.randint(len(data), (128,))]
    start, t = torch.randn_like(end), torch.rand(len(end), 1)
    between = (1 - t) * start + t * end
    target = end - start
    if fault("target_of_other_rows"):
        target = target[torch.randperm(len(target))]
    loss = (field(between, t) - target).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    average.update_parameters(field)
with torch.no_grad():
    x = torch.randn(64, 2)
    for t in torch.linspace(0, 1, 11)[:-1]:
        x = x + 0.1 * average(x, t.expand(64, 1))
