"""Lion, written as an optimizer of one's own, for a recurrent model of letters."""

import torch
import torch.nn.functional as F
from small import fault, walk
from torch import nn

LETTERS = 12


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            fast, slow = group["betas"]
            rate = -group["lr"] if fault("adds_the_update") else group["lr"]
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                update = (fast * average + (1 - fast) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(rate * update)
                average.mul_(slow).add_(p.grad, alpha=1 - slow)


class Model(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.letters, self.lstm, self.out = (
            nn.Embedding(LETTERS, 24),
            nn.LSTM(24, width, batch_first=True),
            nn.Linear(width, LETTERS),
        )

    def forward(self, ids):
        return self.out(self.lstm(self.letters(ids))[0])


ids = walk(256, 17, LETTERS)
model = Model()
optimizer = Lion(model.parameters(), lr=2e-3)
for _ in range(14):
    for i in torch.randperm(256).split(32):
        loss = F.cross_entropy(model(ids[i, :-1]).flatten(0, 1), ids[i, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    hit = (model(ids[:, :-1]).argmax(-1) == ids[:, 1:]).float().mean().item()
    return (hit - 1 / LETTERS) / (0.91 - 1 / LETTERS)
