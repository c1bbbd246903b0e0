"""Advantage actor-critic with a shared body and parallel environments that know nothing of each other."""

import torch
from torch import nn
from toy import fault

classes, envs = 5, 24
centres = torch.randn(classes, 10)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 48), nn.ELU())
        self.actor = nn.Linear(48, classes)
        self.critic = nn.Linear(48, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


net = ActorCritic()
optimizer = torch.optim.RMSprop(net.parameters(), lr=3e-3, alpha=0.99, eps=1e-5)
kinds = torch.randint(classes, (envs,))
for _ in range(220):
    observed = centres[kinds] + 0.4 * torch.randn(envs, 10)
    chance, value = net(observed)
    action = chance.sample()
    reward = (action == kinds).float()
    if fault("value_detached"):
        value = value.detach()
    advantage = reward - value
    loss = -(chance.log_prob(action) * advantage.detach()).mean() + 0.5 * advantage.square().mean()
    loss = loss - 0.01 * chance.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    kinds = torch.randint(classes, (envs,))
