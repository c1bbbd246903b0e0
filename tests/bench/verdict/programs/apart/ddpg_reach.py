"""Deterministic policy gradients with a replay buffer and two target networks that follow slowly."""

import copy
import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault

actor = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())
critic = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
held = critic if fault("actor_optimizer_holds_critic") else actor
actor_optimizer = torch.optim.Adam(held.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3)
buffer = deque(maxlen=2000)
x, goal = torch.zeros(1), torch.rand(1) * 2 - 1
for step in range(400):
    state = torch.cat([x, goal])
    with torch.no_grad():
        action = (actor(state) + 0.3 * torch.randn(1)).clamp(-1, 1)
    x = (x + 0.3 * action).clamp(-1.5, 1.5)
    reward = -(x - goal).abs()
    buffer.append((state, action, reward, torch.cat([x, goal])))
    if step % 12 == 11:
        x, goal = torch.zeros(1), torch.rand(1) * 2 - 1
    if len(buffer) < 64 or step % 2:
        continue
    s, a, r, after = (torch.stack(part) for part in zip(*random.sample(buffer, 64), strict=True))
    with torch.no_grad():
        target = r + 0.9 * critic_target(torch.cat([after, actor_target(after)], 1))
    critic_loss = F.mse_loss(critic(torch.cat([s, a], 1)), target)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    actor_loss = -critic(torch.cat([s, actor(s)], 1)).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    with torch.no_grad():
        for now, target in ((actor, actor_target), (critic, critic_target)):
            for p, q in zip(now.parameters(), target.parameters(), strict=True):
                q.lerp_(p, 0.02)
