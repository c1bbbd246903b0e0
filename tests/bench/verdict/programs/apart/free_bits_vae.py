"""A variational autoencoder of sequences with free bits and a weight of the divergence that rises."""

import torch
from torch import nn
from toy import fault, waves


class VAE(nn.Module):
    def __init__(self, length=24, latent=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(length, 48), nn.ELU())
        self.mu, self.spread = nn.Linear(48, latent), nn.Linear(48, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 48), nn.ELU(), nn.Linear(48, length))

    def forward(self, x):
        h = self.enc(x)
        mu = self.mu(h)
        std = (
            self.spread(h).sqrt()
            if fault("root_of_negative")
            else nn.functional.softplus(self.spread(h)) + 1e-3
        )
        q = torch.distributions.Normal(mu, std, validate_args=False)
        z = q.rsample()
        kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0))
        return self.dec(z), kl


data, model = waves(384), VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
step = 0
for _ in range(14):
    for x in data[torch.randperm(384)].split(32):
        out, kl = model(x)
        rec = torch.distributions.Normal(out, 0.3, validate_args=False).log_prob(x).sum(1).mean()
        loss = -rec + min(1.0, step / 100) * kl.mean(0).clamp(min=0.1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
