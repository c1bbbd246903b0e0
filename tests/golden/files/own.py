import torch
from torch.utils.data import DataLoader, TensorDataset


def loaders():
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(32, 3, 32, 32, generator=generator), torch.arange(32) % 10)
    return DataLoader(data, batch_size=8), DataLoader(data, batch_size=8)


def halve(module, args, output):
    return output / 2


def loss(output):
    return output.square().mean()
