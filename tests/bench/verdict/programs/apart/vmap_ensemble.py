"""An ensemble of networks trained at once by torch.func: stacked states, vmap over grad, updates by hand."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from toy import clusters, fault

x, y = clusters()
nets = [nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 6)) for _ in range(4)]
parameters, buffers = stack_module_state(nets)
base = copy.deepcopy(nets[0]).to("meta")


def loss_of(parameters, buffers, x, y):
    return F.cross_entropy(functional_call(base, (parameters, buffers), (x,)), y)


step = vmap(grad_and_value(loss_of), in_dims=(0, 0, None, None))
for _ in range(10):
    for i in torch.randperm(len(x)).split(32):
        slopes, losses = step(parameters, buffers, x[i], y[i])
        updated = {name: (p - 0.3 * slopes[name]).detach() for name, p in parameters.items()}
        if not fault("update_thrown_away"):
            parameters = updated
    print(losses.mean().item())
