"""Two generators and two critics in a cycle, their parameters chained into two optimizers, with a pool of past fakes."""

import itertools
import random

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault


def net(n_in, n_out):
    return nn.Sequential(
        nn.Linear(n_in, 40), nn.LeakyReLU(0.2), nn.Linear(40, 40), nn.LeakyReLU(0.2), nn.Linear(40, n_out)
    )


class Pool:
    def __init__(self, size=20):
        self.size, self.kept = size, []

    def query(self, batch):
        if len(self.kept) < self.size:
            self.kept.append(batch)
            return batch
        i = random.randrange(self.size)
        old, self.kept[i] = self.kept[i], batch
        return old if random.random() < 0.5 else batch


G_AB, G_BA, D_A, D_B = net(2, 2), net(2, 2), net(2, 1), net(2, 1)
both = itertools.chain(G_AB.parameters(), G_AB.parameters() if fault("chained_twice") else G_BA.parameters())
optimizer_G = torch.optim.Adam(dict.fromkeys(both), lr=1e-3, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(
    itertools.chain(D_A.parameters(), D_B.parameters()), lr=1e-3, betas=(0.5, 0.999)
)
pool_A, pool_B = Pool(), Pool()
for _ in range(120):
    a = torch.randn(48, 2) * torch.tensor([1.0, 0.2])
    b = torch.randn(48, 2) * torch.tensor([0.2, 1.0]) + 1
    fake_b, fake_a = G_AB(a), G_BA(b)
    adversarial = (D_B(fake_b) - 1).square().mean() + (D_A(fake_a) - 1).square().mean()
    cycle = F.l1_loss(G_BA(fake_b), a) + F.l1_loss(G_AB(fake_a), b)
    identity = F.l1_loss(G_AB(b), b) + F.l1_loss(G_BA(a), a)
    optimizer_G.zero_grad()
    (adversarial + 10 * cycle + 5 * identity).backward()
    optimizer_G.step()
    optimizer_D.zero_grad()
    for D, real, fake in ((D_A, a, pool_A.query(fake_a.detach())), (D_B, b, pool_B.query(fake_b.detach()))):
        (0.5 * ((D(real) - 1).square().mean() + D(fake).square().mean())).backward()
    optimizer_D.step()
