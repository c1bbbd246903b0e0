"""Tables: every column becomes a token, a class token is read; three quarters of training, one of validation."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import fault


class Tokens(nn.Module):
    def __init__(self, numbers, categories, dim):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(0.3 * torch.randn(numbers, dim)),
            nn.Parameter(torch.zeros(numbers, dim)),
        )
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in categories)
        self.cls = nn.Parameter(0.02 * torch.randn(dim))

    def forward(self, numbers, categories):
        parts = [self.cls.expand(len(numbers), 1, -1), numbers[..., None] * self.weight + self.bias]
        if not fault("categories_never_used"):
            parts += [table(categories[:, k : k + 1]) for k, table in enumerate(self.tables)]
        return torch.cat(parts, 1)


class FT(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.tokens = Tokens(6, (4, 7), dim)
        self.block = nn.TransformerEncoderLayer(dim, 4, 48, 0.05, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, numbers, categories):
        return self.head(self.block(self.tokens(numbers, categories))[:, 0]).squeeze(-1)


numbers, categories = (
    torch.randn(512, 6),
    torch.stack([torch.randint(4, (512,)), torch.randint(7, (512,))], 1),
)
target = (
    numbers[:, 0] * numbers[:, 1] + torch.randn(4)[categories[:, 0]] + 0.5 * torch.randn(7)[categories[:, 1]]
)
target = (target - target.mean()) / target.std()
model = FT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-5)
for _ in range(14):
    model.train()
    for i in torch.randperm(384).split(32):
        loss = F.mse_loss(model(numbers[i], categories[i]), target[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        print(F.mse_loss(model(numbers[384:], categories[384:]), target[384:]).item())
