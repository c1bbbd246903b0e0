"""Ratings by two factors, of which one rests while the other moves, turn by turn."""

import torch
from small import explained, fault
from torch import nn

USERS, FILMS, RANK = 80, 60, 3
full = torch.randn(USERS, RANK) @ torch.randn(FILMS, RANK).T / RANK**0.5
u, f = (torch.rand(USERS, FILMS) < 0.5).nonzero().T
rating = full[u, f] + 0.1 * torch.randn(len(u))


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.films = nn.Embedding(USERS, RANK), nn.Embedding(FILMS, RANK)
        nn.init.normal_(self.users.weight, std=0.5)
        nn.init.normal_(self.films.weight, std=0.5)
        self.mean = nn.Parameter(torch.zeros(()))

    def forward(self, u, f):
        return (self.users(u) * self.films(f)).sum(1) + self.mean


net = Factors()
optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
for turn in range(16):
    users_move = turn % 2 == 0
    net.users.weight.requires_grad_(users_move and not fault("users_never_move"))
    net.films.weight.requires_grad_(not users_move)
    for i in torch.randperm(len(u)).split(128):
        loss = (net(u[i], f[i]) - rating[i]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    return explained(net(u, f)[:, None], rating[:, None])
