"""Evolution strategies: no gradient; antithetic noise, ranks of the rewards, the update by hand. Healthy only."""

import torch
from torch import nn
from toy import clusters

x, y = clusters(256)
net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 6))
flat = nn.utils.parameters_to_vector(net.parameters()).detach()
for turn in range(40):
    noise = torch.randn(12, len(flat))
    rewards = []
    for one in torch.cat([noise, -noise]):
        nn.utils.vector_to_parameters(flat + 0.1 * one, net.parameters())
        with torch.no_grad():
            rewards.append(-nn.functional.cross_entropy(net(x), y))
    rank = torch.stack(rewards).argsort().argsort().float()
    rank = rank / (len(rank) - 1) - 0.5
    flat = flat + 0.05 * (rank[:12] - rank[12:]) @ noise / 1.2
    nn.utils.vector_to_parameters(flat, net.parameters())
