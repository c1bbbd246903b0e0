"""Q-learning with a replay buffer and a target network; the loss rises as rewards are found."""

import copy
import random
from collections import deque

import torch
import torch.nn.functional as F
from small import fault
from torch import nn

LENGTH = 8


def step(place, action):
    place = max(0, place + (1 if action else -1))
    done = place == LENGTH - 1
    return place, 5.0 if done else -0.1, done


def see(places):
    return F.one_hot(torch.as_tensor(places), LENGTH).float()


q = nn.Sequential(nn.Linear(LENGTH, 48), nn.ReLU(), nn.Linear(48, 2))
target = copy.deepcopy(q)
optimizer = torch.optim.Adam(q.parameters(), lr=2e-3)
memory = deque(maxlen=3000)
place, updates = 0, 0
for frame in range(1500):
    epsilon = max(0.1, 1 - frame / 800)
    action = random.randrange(2) if random.random() < epsilon else q(see([place])).argmax().item()
    following, reward, done = step(place, action)
    memory.append((place, action, reward, following, float(done)))
    place = 0 if done or frame % 60 == 59 else following
    if len(memory) < 200 or frame % 2:
        continue
    s, a, r, n, d = zip(*random.sample(memory, 32), strict=True)
    with torch.no_grad():
        aim = torch.tensor(r) + 0.95 * (1 - torch.tensor(d)) * target(see(n)).amax(1)
    loss = F.smooth_l1_loss(q(see(s)).gather(1, torch.tensor(a)[:, None])[:, 0], aim)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    updates += 1
    if updates % 25 == 0 and not fault("target_never_copied"):
        target.load_state_dict(q.state_dict())


def measure():
    exact, values = 5.0, []
    for _ in range(LENGTH - 1):
        values.append(exact)
        exact = -0.1 + 0.95 * exact
    best = q(see(range(LENGTH - 1)))[:, 1]
    error = (best - torch.tensor(values[::-1])).square().mean()
    return 1 - (error / torch.tensor(values).square().mean()).item()
