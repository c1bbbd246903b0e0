"""Active learning: after every round the least sure examples are labelled, and a new model begins."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import clusters, fault

x, y = clusters(600, noise=1.0)
known = torch.randperm(600)[:100]
optimizer = None
for turn in range(4):
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 6))
    if optimizer is None or not fault("optimizer_of_the_first_round"):
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(12):
        for i in known[torch.randperm(len(known))].split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[i]), y[i]).backward()
            optimizer.step()
    with torch.no_grad():
        margin = model(x).softmax(1).topk(2, 1).values
        unsure = (margin[:, 0] - margin[:, 1]).argsort()[:60]
    known = torch.cat([known, unsure]).unique()
