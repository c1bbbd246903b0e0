"""Sequences of several lengths, packed for a GRU; the state at the last real word is what counts."""

import torch
import torch.nn.functional as F
from small import accuracy, fault
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

N, LONGEST = 480, 16
lengths = torch.randint(5, LONGEST - 3, (N,))
y = torch.randint(4, (N,))
ids = torch.randint(5, 20, (N, LONGEST))
ids[torch.arange(N), (torch.rand(N) * (lengths - 1)).long()] = y + 1
ids[torch.arange(LONGEST) >= lengths[:, None]] = 0


class Reader(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.words = nn.Embedding(20, 24, padding_idx=0)
        self.gru = nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=LONGEST)
        last = states[:, -1] if fault("state_at_the_padding") else states[torch.arange(len(ids)), lengths - 1]
        return self.head(last)


net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for _ in range(14):
    for i in torch.randperm(N).split(32):
        loss = F.cross_entropy(net(ids[i], lengths[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()


def measure():
    return accuracy(net(ids, lengths), y)
