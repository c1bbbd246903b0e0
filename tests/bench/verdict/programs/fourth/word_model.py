"""A causal transformer over words, by fused attention, with tied embeddings."""

import torch
import torch.nn.functional as F
from small import fault, walk
from torch import nn

WORDS, WIDTH, HEADS = 12, 32, 4
ids = walk(320, 17, WORDS)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(approximate="tanh"), nn.Linear(64, WIDTH))

    def forward(self, x):
        n, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.mix(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        )
        return x + self.mlp(self.after(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, WIDTH)
        nn.init.normal_(self.words.weight, std=0.3)
        self.layers = nn.Sequential(Layer(), Layer())
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        h = self.layers(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        return F.linear(self.norm(h), self.words.weight)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
inputs, targets = ids[:, :-1], ids[:, 1:]
axis = 1 if fault("softmax_over_the_places") else 2
for epoch in range(16):
    for i in torch.randperm(len(ids)).split(32):
        logs = model(inputs[i]).log_softmax(axis)
        loss = -logs.gather(2, targets[i][..., None]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def measure():
    hit = (model(ids[:, :-1]).argmax(-1) == ids[:, 1:]).float().mean().item()
    return (hit - 1 / WORDS) / (0.91 - 1 / WORDS)
