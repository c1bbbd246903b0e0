"""A convolutional variational autoencoder whose divergence is averaged like its error."""

import torch
import torch.nn.functional as F
from small import explained, fault, icons
from torch import nn


class VAE(nn.Module):
    def __init__(self, n_latent=8):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.LeakyReLU(0.1),
            nn.Flatten(),
            nn.Linear(288, 2 * n_latent),
        )
        self.decode = nn.Sequential(
            nn.Linear(n_latent, 288),
            nn.Unflatten(1, (32, 3, 3)),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose2d(32, 16, 4, 2, 1),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, 1)
        out = self.decode(mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean))
        if fault("sigmoid_for_standardised_images"):
            out = out.sigmoid()
        return out, -0.5 * (1 + log_variance - mean.square() - log_variance.exp())


x, _ = icons(400, 6)
x = F.avg_pool2d(x, 3, 1, 1)
x = (x - x.mean()) / x.std()
net = VAE()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(25):
    for i in torch.randperm(400).split(40):
        out, divergence = net(x[i])
        divergence = divergence.sum() if fault("divergence_summed") else divergence.sum() / x[i].numel()
        loss = F.mse_loss(out, x[i]) + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    return explained(net(x)[0].flatten(1), x.flatten(1))
