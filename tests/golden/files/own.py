import torch
from torch.utils.data import DataLoader, TensorDataset
from modelscope_cli.training.runner import Callback


def loaders():
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(32, 3, 32, 32, generator=generator), torch.arange(32) % 10)
    return DataLoader(data, batch_size=8), DataLoader(data, batch_size=8)


class Quiet(Callback):
    pass


def halve(module, args, output):
    return output / 2


def loss(output):
    return output.square().mean()
