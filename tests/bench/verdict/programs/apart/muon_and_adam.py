"""Matrices by orthogonalised momentum (Muon), everything else by AdamW; a small model with rotary places and SwiGLU."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import corpus, fault


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(m, group["momentum"])
                tall = g.shape[0] > g.shape[1]
                g = g.T if tall else g
                g = g / (g.norm() + 1e-7)
                for _ in range(5):
                    a = g @ g.T
                    g = 3.4445 * g + (-4.7750 * a + 2.0315 * a @ a) @ g
                g = g.T if tall else g
                p.add_(g, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


class Block(nn.Module):
    def __init__(self, d=32, heads=4):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w2, self.w3 = (
            nn.Linear(d, 64, bias=False),
            nn.Linear(64, d, bias=False),
            nn.Linear(d, 64, bias=False),
        )

    def rotate(self, x):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class LM(nn.Module):
    def __init__(self, vocabulary=14, d=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


text, model = corpus(), LM()
matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
ids = {id(p) for p in matrices}
others = [p for p in model.parameters() if id(p) not in ids]
if fault("matrices_in_neither"):
    optimizers = [torch.optim.AdamW(others, lr=3e-3)]
else:
    optimizers = [Muon(matrices), torch.optim.AdamW(others, lr=3e-3)]
for step in range(120):
    at = torch.randint(len(text) - 17, (16,))
    window = torch.stack([text[i : i + 17] for i in at])
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
