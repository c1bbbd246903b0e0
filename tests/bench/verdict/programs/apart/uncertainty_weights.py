"""Three tasks on one body, weighted by learnt variances."""

import torch
import torch.nn.functional as F
from torch import nn
from toy import clusters, fault


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.heads = nn.ModuleDict(
            {"kind": nn.Linear(64, 6), "size": nn.Linear(64, 1), "flag": nn.Linear(64, 1)}
        )

    def forward(self, x):
        h = self.body(x)
        return {name: head(h) for name, head in self.heads.items()}


x, kind = clusters(512)
size = x[:, :4].square().sum(1, keepdim=True) / 4
flag = (x[:, 5:6] * x[:, 6:7] > 0).float()
model, log_vars = (
    Net(),
    nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in ("kind", "size", "flag")}),
)
parameters = [*model.parameters()]
if not fault("log_vars_left_out"):
    parameters += log_vars.parameters()
optimizer = torch.optim.Adam(parameters, lr=3e-3)
for _ in range(14):
    for i in torch.randperm(512).split(48):
        out = model(x[i])
        losses = {
            "kind": F.cross_entropy(out["kind"], kind[i]),
            "size": F.mse_loss(out["size"], size[i]),
            "flag": F.binary_cross_entropy_with_logits(out["flag"], flag[i]),
        }
        loss = sum(torch.exp(-log_vars[name]) * part + log_vars[name] for name, part in losses.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
