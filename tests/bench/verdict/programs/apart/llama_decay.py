"""A causal language model with grouped queries and tied weights; accumulation over two micro-batches by hand."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import corpus, fault


class Attention(nn.Module):
    def __init__(self, d=32, heads=4, kv=2):
        super().__init__()
        self.heads, self.kv = heads, kv
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d // heads * kv), nn.Linear(d, d // heads * kv)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            f(x).unflatten(-1, (self.kv, -1)).transpose(1, 2).repeat_interleave(2, 1)
            for f in (self.k, self.v)
        )
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class LM(nn.Module):
    def __init__(self, vocabulary=14, d=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, d), nn.Embedding(16, d)
        self.attention, self.norms = (
            nn.ModuleList(Attention() for _ in range(2)),
            nn.ModuleList(nn.LayerNorm(d) for _ in range(5)),
        )
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d)) for _ in range(2)
        )
        self.head = nn.Linear(d, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for i, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x))


text, model = corpus(), LM()
optimizer = torch.optim.AdamW(
    model.parameters(), lr=3e-3, weight_decay=300.0 if fault("decay_of_300") else 0.1
)
for step in range(200):
    at = torch.randint(len(text) - 17, (12,))
    window = torch.stack([text[i : i + 17] for i in at])
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten()) / 2
    loss.backward()
    if step % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
