"""Knowledge-graph embeddings by translation with a margin against corrupted triples."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault

n, relations = 90, 4
place = torch.randn(n, 3)
shift = torch.randn(relations, 3)
heads = torch.randint(n, (1500,))
kinds = torch.randint(relations, (1500,))
tails = torch.cdist(place[heads] + shift[kinds], place).argmin(1)
entity, relation = nn.Embedding(n, 16), nn.Embedding(relations, 16)
optimizer = torch.optim.Adagrad([*entity.parameters(), *relation.parameters()], lr=0.1)
for _ in range(10):
    for i in torch.randperm(1500).split(100):
        h, r, t = heads[i], kinds[i], tails[i]
        wrong = t if fault("nothing_corrupted") else torch.randint(n, t.shape)
        unit = F.normalize(entity.weight, dim=1)
        good = (unit[h] + relation(r) - unit[t]).norm(dim=1)
        bad = (unit[h] + relation(r) - unit[wrong]).norm(dim=1)
        loss = F.relu(1 + good - bad).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
