"""Which of two words comes first: an encoder for which only the positions tell."""

import torch
import torch.nn.functional as F
from small import accuracy, fault, sentences
from torch import nn


class Model(nn.Module):
    def __init__(self, words=16, length=12, width=32):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.5 * torch.randn(length, width))
        first = not fault("batch_first_left_out")
        self.attend = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=first) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))
            for _ in range(2)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        h = self.words(ids)
        if not fault("places_left_out"):
            h = h + self.places
        for attend, mlp in zip(self.attend, self.mlp, strict=True):
            h = h + attend(h, h, h, need_weights=False)[0]
            h = h + mlp(h)
        return self.head(h.mean(1))


x, y = sentences(512)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(16):
    for i in torch.randperm(512).split(32):
        loss = F.cross_entropy(model(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    new = sentences(512)
    return accuracy(model(new[0]), new[1])
