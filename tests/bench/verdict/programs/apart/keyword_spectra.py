"""Sounds to log spectra to a depthwise network, with masked bands and a cosine in epochs. Healthy only."""

import torch
import torch.nn.functional as F
import toy  # noqa: F401 - seeds
from torch import nn

n, classes = 320, 6
labels = torch.randint(classes, (n,))
time = torch.arange(800) / 800
tone = 20 + 25 * labels.float()[:, None]
sounds = torch.sin(6.283 * tone * time * (1 + 0.3 * time)) * torch.hann_window(800) + 0.3 * torch.randn(
    n, 800
)
power = torch.stft(sounds, 64, 32, window=torch.hann_window(64), return_complex=True).abs().square()
spectra = (power + 1e-6).log()
spectra = (spectra - spectra.mean()) / spectra.std()
model = nn.Sequential(
    nn.Conv1d(33, 33, 5, padding=2, groups=33),
    nn.Conv1d(33, 32, 1),
    nn.ReLU6(),
    nn.Conv1d(32, 32, 5, 2, groups=32),
    nn.Conv1d(32, 32, 1),
    nn.ReLU6(),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(32, classes),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
for _ in range(16):
    for i in torch.randperm(n).split(32):
        x = spectra[i].clone()
        x[:, torch.randint(33, (2,))] = 0
        loss = F.cross_entropy(model(x), labels[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    cosine.step()
