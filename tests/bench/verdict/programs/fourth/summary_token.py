"""A summary token before padded sequences, in pre-norm encoder layers with a mask of the padding."""

import torch
import torch.nn.functional as F
from small import accuracy, fault
from torch import nn

N, LONGEST = 480, 14
lengths = torch.randint(6, LONGEST - 1, (N,))
y = torch.randint(4, (N,))
ids = torch.randint(6, 20, (N, LONGEST))
for place in torch.rand(2, N):
    ids[torch.arange(N), (place * lengths).long()] = y + 1
is_real = torch.arange(LONGEST) < lengths[:, None]
ids = ids * is_real


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words, self.summary = nn.Embedding(20, width), nn.Parameter(0.02 * torch.randn(width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, ids, is_real):
        h = torch.cat([self.summary.expand(len(ids), 1, -1), self.words(ids)], 1)
        hidden = is_real if fault("mask_inverted") else ~is_real
        hidden = torch.cat([torch.zeros(len(ids), 1, dtype=torch.bool), hidden], 1)
        return self.head(self.encoder(h, src_key_padding_mask=hidden)[:, 0])


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(14):
    for i in torch.randperm(N).split(32):
        loss = F.cross_entropy(model(ids[i], is_real[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    return accuracy(model(ids, is_real), y)
