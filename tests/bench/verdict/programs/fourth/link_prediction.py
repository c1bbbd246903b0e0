"""A graph autoencoder: edges against sampled pairs without one."""

import torch
import torch.nn.functional as F
from small import fault
from torch import nn

NODES, PARTS = 150, 5
part = torch.arange(NODES) % PARTS
chance = torch.where(part[:, None] == part[None], 0.35, 0.02)
linked = torch.triu(torch.rand(NODES, NODES) < chance, 1)
a, b = linked.nonzero().T
adjacency = (linked | linked.T).float() + torch.eye(NODES)
weights = adjacency.sum(1).rsqrt()
adjacency = weights[:, None] * adjacency * weights


class Encoder(nn.Module):
    def __init__(self, width=48, out=16):
        super().__init__()
        self.features = nn.Parameter(torch.randn(NODES, width) / width**0.5)
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, out)

    def forward(self):
        hidden = F.leaky_relu(adjacency @ self.one(self.features))
        return adjacency @ self.two(F.dropout(hidden, 0.1, self.training))


def score(z, i, j):
    return (z[i] * z[j]).sum(-1)


net = Encoder()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=1e-5)
for step in range(250):
    z = net()
    c, d = torch.randint(NODES, (2, len(a)))
    if fault("negatives_are_edges"):
        c, d = b, a
    logits = torch.cat([score(z, a, b), score(z, c, d)])
    if fault("sigmoid_in_the_score"):
        logits = logits.sigmoid()
    truth = torch.cat([torch.ones(len(a)), torch.zeros(len(a))])
    loss = F.binary_cross_entropy_with_logits(logits, truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def measure():
    net.eval()
    z = net()
    c, d = torch.randint(NODES, (2, 4000))
    keep = part[c] != part[d]
    good = score(z, a, b)
    return (2 * (good[:, None] > score(z, c, d)[keep][None]).float().mean() - 1).item()
