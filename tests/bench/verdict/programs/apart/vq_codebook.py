"""A vector-quantised autoencoder: codebook by moving averages, commitment, straight-through."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault, pictures


class Codebook(nn.Module):
    def __init__(self, size=24, dim=8):
        super().__init__()
        self.register_buffer("codes", torch.randn(size, dim) * 0.3)
        self.register_buffer("counts", torch.ones(size))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        index = torch.cdist(flat, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(index, len(self.codes)).float()
                self.counts.lerp_(hot.sum(0), 0.05)
                self.sums.lerp_(hot.T @ flat, 0.05)
                self.codes.copy_(self.sums / self.counts.clamp(min=0.05)[:, None])
        q = self.codes[index].view(len(z), *z.shape[2:], -1).permute(0, 3, 1, 2)
        if fault("no_straight_through"):
            return q, z.new_zeros(())
        return z + (q - z).detach(), 0.25 * F.mse_loss(z, q)


encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1))
decoder = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))
codebook = Codebook()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
images, _ = pictures(320)
for _ in range(12):
    for i in torch.randperm(320).split(32):
        q, commitment = codebook(encoder(images[i]))
        loss = F.mse_loss(decoder(q), images[i]) + commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
