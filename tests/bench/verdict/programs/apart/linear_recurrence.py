"""A state-space layer: a diagonal linear recurrence with gates, scanned by a loop."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, waves


class SSM(nn.Module):
    def __init__(self, d=16, state=8):
        super().__init__()
        self.log_decay = nn.Parameter(torch.linspace(-3, 0.5, state).repeat(d, 1))
        self.b, self.c = nn.Linear(d, state), nn.Linear(d, state)
        self.rate, self.skip = nn.Linear(d, d), nn.Parameter(torch.ones(d))

    def forward(self, x):
        dt = F.softplus(self.rate(x))
        sign = 40.0 if fault("grows_not_decays") else -1.0
        keep = torch.exp(sign * self.log_decay.exp() * dt[..., None])
        put = dt[..., None] * x[..., None] * self.b(x)[:, :, None]
        h, outputs, read = torch.zeros_like(put[:, 0]), [], self.c(x)
        for t in range(x.shape[1]):
            h = keep[:, t] * h + put[:, t]
            outputs.append((h * read[:, t, None]).sum(-1))
        return torch.stack(outputs, 1) + self.skip * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.norm, self.ssm, self.out = nn.Linear(1, 16), nn.LayerNorm(16), SSM(), nn.Linear(16, 1)

    def forward(self, x):
        x = self.inp(x)
        return self.out(x + F.silu(self.ssm(self.norm(x))))


data, model = waves(256, 20), Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(14):
    for x in data[torch.randperm(256)].split(32):
        loss = F.mse_loss(model(x[:, :-1, None]).squeeze(-1), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
