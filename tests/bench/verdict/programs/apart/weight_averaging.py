"""Stochastic weight averaging with its own schedule, batch statistics made anew at the end."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset
from toy import fault, pictures

data = TensorDataset(*pictures())
loader = DataLoader(data, 32, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.Hardswish(), nn.Flatten(), nn.Linear(432, 5)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
averaged = AveragedModel(model)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
constant = SWALR(optimizer, swa_lr=300.0 if fault("averaging_rate_huge") else 0.02, anneal_epochs=2)
for epoch in range(12):
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if epoch >= 6:
        averaged.update_parameters(model)
        constant.step()
    else:
        cosine.step()
update_bn(loader, averaged)
