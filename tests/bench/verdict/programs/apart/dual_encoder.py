"""Retrieval by two towers over bags of words, with the other answers of the batch as negatives."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault

topics = torch.randint(200, (150, 8))


def bag(rows):
    words = topics[rows][:, torch.randperm(8)[:5]]
    noise = torch.randint(200, (len(rows), 2))
    return torch.cat([words, noise], 1)


class Tower(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(200, width, mode="mean")
        self.out = nn.Linear(width, width)

    def forward(self, ids):
        return F.normalize(self.out(torch.relu(self.bag(ids))), dim=1)


questions, passages = Tower(), Tower()
optimizer = torch.optim.AdamW([*questions.parameters(), *passages.parameters()], lr=5e-3)
for _ in range(150):
    rows = torch.randperm(150)[:32]
    asked, answers = bag(rows), bag(rows[torch.randperm(32)] if fault("passages_of_other_rows") else rows)
    scores = questions(asked) @ passages(answers).T / 0.1
    loss = F.cross_entropy(scores, torch.arange(32))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
