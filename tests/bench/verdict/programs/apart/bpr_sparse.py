"""A recommender by pairwise ranking with sparse embeddings and SparseAdam."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault

users, items = 80, 60
taste, kind = torch.randn(users, 4), torch.randn(items, 4)
liked = (taste @ kind.T).topk(12, 1).indices
U, V = nn.Embedding(users, 12, sparse=True), nn.Embedding(items, 12, sparse=True)
for table in (U, V):
    nn.init.normal_(table.weight, std=0.1)
held = [*U.parameters()] if fault("items_left_out") else [*U.parameters(), *V.parameters()]
optimizer = torch.optim.SparseAdam(held, lr=0.02)
for _ in range(250):
    u = torch.randint(users, (128,))
    i = liked[u, torch.randint(12, (128,))]
    j = torch.randint(items, (128,))
    loss = -F.logsigmoid((U(u) * (V(i) - V(j))).sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
