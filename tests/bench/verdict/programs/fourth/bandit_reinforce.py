"""A policy for a bandit with contexts, noisy rewards, a running baseline and an entropy bonus."""

import torch
from small import fault
from torch import nn
from torch.distributions import Categorical

ARMS = 4
ideal = torch.randn(ARMS, 8)
policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, ARMS))
optimizer = torch.optim.RMSprop(policy.parameters(), lr=3e-3)
baseline = 0.0
for step in range(500):
    if fault("seeded_in_the_loop"):
        torch.manual_seed(0)
    context = torch.randn(64, 8)
    choice = Categorical(logits=policy(context))
    arm = choice.sample()
    reward = (context @ ideal.T).gather(1, arm[:, None])[:, 0] + 2 * torch.randn(64)
    advantage = reward - baseline
    baseline = 0.95 * baseline + 0.05 * reward.mean().item()
    loss = -(choice.log_prob(arm) * advantage).mean() - 0.01 * choice.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def measure():
    context = torch.randn(2000, 8)
    worth = context @ ideal.T
    got = worth.gather(1, policy(context).argmax(1, keepdim=True)).mean()
    return ((got - worth.mean()) / (worth.amax(1).mean() - worth.mean())).item()
