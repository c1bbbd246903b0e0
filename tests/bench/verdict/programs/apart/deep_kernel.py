"""A Gaussian process on learnt features by its marginal likelihood, in double precision."""

import math

import torch
from torch import nn
from toy import fault


class DeepKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 2))
        self.raw = nn.ParameterDict({k: nn.Parameter(torch.zeros(())) for k in ("length", "scale", "noise")})

    def covariance(self, x):
        z = self.net(x) / nn.functional.softplus(self.raw["length"])
        return nn.functional.softplus(self.raw["scale"]) * torch.exp(
            -0.5 * torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square()
        )

    def loss(self, x, y):
        K = self.covariance(x) + (nn.functional.softplus(self.raw["noise"]) + 1e-4) * torch.eye(len(x))
        L = torch.linalg.cholesky(K)
        a = torch.cholesky_solve(y[:, None], L)[:, 0]
        return (0.5 * y @ a + L.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)) / len(x)


torch.set_default_dtype(torch.float64)
x = torch.randn(80, 3)
y = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * torch.randn(80)
model = DeepKernel()
held = model.net.parameters() if fault("kernel_left_out") else model.parameters()
optimizer = torch.optim.Adam(held, lr=0.02)
for _ in range(150):
    optimizer.zero_grad()
    loss = model.loss(x, y)
    loss.backward()
    optimizer.step()
