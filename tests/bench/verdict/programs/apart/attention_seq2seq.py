"""Sequence to sequence with additive attention and teacher forcing: the target is the source reversed."""

import random

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.embed, self.gru = nn.Embedding(size, width), nn.GRU(width, width, batch_first=True)

    def forward(self, ids):
        return self.gru(self.embed(ids))


class Decoder(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.embed = nn.Embedding(size, width)
        self.query, self.key, self.energy = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, 1),
        )
        self.cell, self.out = nn.GRUCell(2 * width, width), nn.Linear(width, size)

    def forward(self, memory, h, targets, forced):
        token = torch.ones(len(targets), dtype=torch.long)
        outputs = []
        for t in range(targets.shape[1]):
            weights = F.softmax(self.energy(torch.tanh(self.query(h)[:, None] + self.key(memory))), dim=1)
            context = (weights * memory).sum(1)
            h = self.cell(torch.cat([self.embed(token), context], 1), h)
            logits = self.out(h)
            outputs.append(logits)
            token = targets[:, t] if forced else logits.argmax(1).detach()
        return torch.stack(outputs, 1)


encoder, decoder = Encoder(10, 32), Decoder(10, 32)
encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=5e-3)
decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=5e-3)
for _ in range(140):
    source = torch.randint(2, 10, (32, 5))
    target = source.flip(1)
    memory, h = encoder(source)
    logits = decoder(memory, h[0], target, random.random() < 0.8)
    loss = F.nll_loss(F.log_softmax(logits, -1).flatten(0, 1), target.flatten())
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    loss.backward()
    encoder_optimizer.step()
    decoder_optimizer.step()
