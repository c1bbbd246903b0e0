"""An autoencoder with categorical codes: Gumbel noise, and a temperature that falls."""

import torch
import torch.nn.functional as F
from small import explained, fault, icons
from torch import nn

CODES, WAYS = 6, 8
x, _ = icons(400, 6)
x = x.flatten(1)
encoder = nn.Sequential(nn.Linear(144, 96), nn.ReLU(), nn.Linear(96, CODES * WAYS))
decoder = nn.Sequential(nn.Linear(CODES * WAYS, 96), nn.ReLU(), nn.Linear(96, 144))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)


def code(logits, temperature):
    logits = logits.view(-1, CODES, WAYS)
    noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1 - 1e-6)))
    return ((logits + noise) / temperature).softmax(-1)


temperature = 1.0
for epoch in range(25):
    for i in torch.randperm(400).split(40):
        logits = encoder(x[i])
        out = decoder(code(logits, temperature).flatten(1))
        share = logits.view(-1, CODES, WAYS).softmax(-1).mean(0)
        loss = F.mse_loss(out, x[i]) + 0.01 * (share * (share + 1e-9).log()).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault("cooled_each_step_without_floor"):
            temperature *= 0.5
    if not fault("cooled_each_step_without_floor"):
        temperature = max(0.3, 0.95 * temperature)


def measure():
    return explained(decoder(code(encoder(x), 0.1).flatten(1)), x) / 0.45
