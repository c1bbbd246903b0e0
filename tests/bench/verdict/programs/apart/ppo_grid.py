"""Proximal policy optimisation on a corridor: rollouts, generalised advantages, several epochs over each."""

import torch
from torch import nn
from torch.distributions import Categorical

length, envs, horizon = 7, 16, 24
policy = nn.Sequential(nn.Linear(length, 32), nn.Tanh(), nn.Linear(32, 2))
value = nn.Sequential(nn.Linear(length, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-3, eps=1e-5)
eye = torch.eye(length)
place = torch.zeros(envs, dtype=torch.long)
for update in range(16):
    seen, actions, logps, rewards, values, dones = [], [], [], [], [], []
    for _ in range(horizon):
        state = eye[place]
        with torch.no_grad():
            chance = Categorical(logits=policy(state))
            action = chance.sample()
            logps.append(chance.log_prob(action))
            values.append(value(state).squeeze(-1))
        place = (place + 2 * action - 1).clamp(0, length - 1)
        done = place == length - 1
        rewards.append(done.float() - 0.01)
        dones.append(done.float())
        place = torch.where(done, 0, place)
        seen.append(state)
        actions.append(action)
    with torch.no_grad():
        following = value(eye[place]).squeeze(-1)
    advantages, last = [], torch.zeros(envs)
    for t in reversed(range(horizon)):
        delta = rewards[t] + 0.97 * following * (1 - dones[t]) - values[t]
        last = delta + 0.97 * 0.95 * (1 - dones[t]) * last
        advantages.insert(0, last)
        following = values[t]
    s, a, old = torch.cat(seen), torch.cat(actions), torch.cat(logps)
    adv = torch.cat(advantages)
    returns = adv + torch.cat(values)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(4):
        for i in torch.randperm(len(s)).split(128):
            chance = Categorical(logits=policy(s[i]))
            ratio = (chance.log_prob(a[i]) - old[i]).exp()
            clipped = torch.min(ratio * adv[i], ratio.clamp(0.8, 1.2) * adv[i]).mean()
            loss = -clipped + 0.5 * (value(s[i]).squeeze(-1) - returns[i]).square().mean()
            loss = loss - 0.01 * chance.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*policy.parameters(), *value.parameters()], 0.5)
            optimizer.step()
    print(update, torch.stack(rewards).mean().item())
