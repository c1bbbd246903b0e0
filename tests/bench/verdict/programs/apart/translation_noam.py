"""nn.Transformer with padding and causal masks, label smoothing and the schedule of its paper."""

import torch
import torch.nn.functional as F
from torch import nn

PAD, BOS, WORDS = 0, 1, 12


class Translator(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.d = d
        self.source, self.target = nn.Embedding(WORDS, d, PAD), nn.Embedding(WORDS, d, PAD)
        self.place = nn.Parameter(0.1 * torch.randn(10, d))
        self.net = nn.Transformer(d, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, WORDS)

    def forward(self, source, target):
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.net(
            self.source(source) * self.d**0.5 + self.place[: source.shape[1]],
            self.target(target) * self.d**0.5 + self.place[: target.shape[1]],
            tgt_mask=causal,
            src_key_padding_mask=torch.zeros(source.shape).masked_fill(source == PAD, float("-inf")),
            memory_key_padding_mask=torch.zeros(source.shape).masked_fill(source == PAD, float("-inf")),
        )
        return self.out(hidden)


def batch(n=32, longest=7):
    source = torch.randint(2, WORDS, (n, longest))
    lengths = torch.randint(3, longest + 1, (n, 1))
    source = source.masked_fill(torch.arange(longest) >= lengths, PAD)
    target = torch.where(source == PAD, PAD, (source - 2 + 5) % (WORDS - 2) + 2)
    return source, torch.cat([torch.full((n, 1), BOS), target], 1)


model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
noam = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: 32**-0.5 * min((s + 1) ** -0.5, (s + 1) * 60**-1.5)
)
for _ in range(150):
    source, target = batch()
    logits = model(source, target[:, :-1])
    loss = F.cross_entropy(
        logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    noam.step()
