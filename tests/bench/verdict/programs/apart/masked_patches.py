"""A masked autoencoder: three patches in four are hidden, a small decoder fills them in. Healthy only."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import pictures


class MAE(nn.Module):
    def __init__(self, dim=32, places=16, pixels=9):
        super().__init__()
        layer = {"nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
        self.patch, self.place = nn.Linear(pixels, dim), nn.Parameter(0.02 * torch.randn(places, dim))
        self.encoder = nn.TransformerEncoderLayer(dim, **layer)
        self.hidden, self.decoder_place = (
            nn.Parameter(torch.zeros(dim)),
            nn.Parameter(0.02 * torch.randn(places, dim)),
        )
        self.decoder, self.out = nn.TransformerEncoderLayer(dim, **layer), nn.Linear(dim, pixels)

    def forward(self, patches, ratio=0.5):
        n, places, _ = patches.shape
        order = torch.rand(n, places).argsort(1)
        back = order.argsort(1)
        kept = order[:, : int(places * (1 - ratio))]
        x = (self.patch(patches) + self.place).gather(1, kept[..., None].expand(-1, -1, 32))
        x = self.encoder(x)
        x = torch.cat([x, self.hidden.expand(n, places - x.shape[1], -1)], 1)
        x = x.gather(1, back[..., None].expand(-1, -1, 32))
        seen = torch.ones(n, places).scatter(1, kept, 0.0)
        return self.out(self.decoder(x + self.decoder_place)), seen


images, _ = pictures(384)
patches = F.unfold(images, 3, stride=3).transpose(1, 2)
model = MAE()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
for _ in range(14):
    for i in torch.randperm(384).split(32):
        out, hidden = model(patches[i])
        loss = ((out - patches[i]).square().mean(-1) * hidden).sum() / hidden.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
