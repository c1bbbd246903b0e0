"""Prompt tuning: a frozen language model, and a few learnt vectors in front of what it reads."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault


class Backbone(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Embedding(20, d)
        self.block = nn.TransformerEncoderLayer(d, 4, 64, 0.0, batch_first=True)
        self.head = nn.Linear(d, 24)

    def forward(self, ids, prompt=None):
        x = self.embed(ids)
        if prompt is not None:
            prompt = prompt.data if fault("prompt_by_data") else prompt
            x = torch.cat([prompt.expand(len(ids), -1, -1), x], 1)
        return self.head(self.block(x).mean(1))


def task(n, turned):
    ids = torch.randint(20, (n, 8))
    y = (ids.sum(1) > 76).long()
    return ids, (1 - y if turned else y)


model = Backbone()
model.requires_grad_(False)
prompt, out = nn.Parameter(0.5 * torch.randn(6, 32)), nn.Linear(24, 2)
optimizer = torch.optim.AdamW([prompt, *out.parameters()], lr=0.02)
for _ in range(220):
    ids, y = task(32, True)
    loss = F.cross_entropy(out(model(ids, prompt)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
