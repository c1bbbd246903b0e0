"""Strings read from frames of varying speed: convolutions and the CTC loss."""

import torch
import torch.nn.functional as F
from small import fault
from torch import nn

SYMBOLS, LENGTH, FRAMES = 5, 3, 24
shapes = torch.randn(SYMBOLS + 1, 8)


def draw(n):
    texts = torch.randint(1, SYMBOLS + 1, (n, LENGTH))
    frames = torch.zeros(n, FRAMES, dtype=torch.long)
    for row, text in zip(frames, texts.tolist(), strict=True):
        at = torch.randint(3, ()).item()
        for symbol in text:
            width = torch.randint(3, 6, ()).item()
            row[at : at + width] = symbol
            at += width + torch.randint(1, 3, ()).item()
    return shapes[frames] + 0.3 * torch.randn(n, FRAMES, 8), texts


class Reader(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(8, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Conv1d(width, width, 3, padding=1),
        )
        self.out = nn.Linear(width, SYMBOLS + 1)

    def forward(self, frames):
        return self.out(F.gelu(self.conv(frames.transpose(1, 2))).transpose(1, 2))


frames, texts = draw(512)
net, ctc = Reader(), nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
for epoch in range(8):
    for i in torch.randperm(512).split(32):
        scores = net(frames[i])
        logs = scores.softmax(-1) if fault("softmax_for_log_softmax") else scores.log_softmax(-1)
        n_frames = FRAMES // 12 if fault("lengths_of_a_strided_net") else FRAMES
        loss = ctc(
            logs.transpose(0, 1), texts[i], torch.full((len(i),), n_frames), torch.full((len(i),), LENGTH)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure():
    net.eval()
    best = net(frames).argmax(-1)
    read = [[int(s) for s in row.unique_consecutive() if s] for row in best]
    return sum(one == text for one, text in zip(read, texts.tolist(), strict=True)) / len(texts)
