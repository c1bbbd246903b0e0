"""Federated averaging: copies of a model train on their own data, then their weights are averaged."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from toy import clusters, fault

x, y = clusters(600)
parts = list(zip(x.split(150), y.split(150), strict=True))
server = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6))


def local_update(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for i in torch.randperm(len(x)).split(25):
        optimizer.zero_grad()
        F.cross_entropy(model(x[i]), y[i]).backward()
        optimizer.step()
    return model.state_dict()


for turn in range(8):
    states = [local_update(copy.deepcopy(server), *part) for part in parts]
    average = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    if not fault("average_not_loaded"):
        server.load_state_dict(average)
    with torch.no_grad():
        print(turn, (server(x).argmax(1) == y).float().mean().item())
