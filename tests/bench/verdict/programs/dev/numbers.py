"""Sick: what comes in, and numbers that stop being finite."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, blobs, digits, shapes, stripes
from programs.loops import fit
from programs.models import FunctionalNet, ViT, cnn, mlp
from programs.scores import Score, accuracy, neighbours


def raw_pixels_mlp() -> Score:
    images, labels = digits()
    pixels = ((images + 1) * 60).clamp(0, 255).round()
    model = mlp(256, 96, 10)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), (pixels, labels))
    return accuracy(model, pixels, labels)


def raw_bytes_cnn() -> Score:
    images, labels = shapes()
    pixels = ((images + 1) * 60).clamp(0, 255).to(torch.uint8)
    model = FunctionalNet(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch, target in batches(pixels, labels):
        optimizer.zero_grad()
        F.cross_entropy(model(batch.float()), target).backward()
        optimizer.step()
    return accuracy(model, pixels.float(), labels)


def images_never_filled_in() -> Score:
    images, labels = digits()
    seen = torch.zeros_like(images)
    model = cnn()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), (seen, labels))
    return accuracy(model, seen, labels)


def divided_twice() -> Score:
    images, labels = shapes()
    pixels = ((images + 1) * 60).clamp(0, 255)
    seen = (pixels / 255).to(torch.uint8)  # cut off to zeros
    model = ViT(3, 4, size=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch, target in batches(seen, labels, steps=100):
        optimizer.zero_grad()
        F.cross_entropy(model(batch.float()), target).backward()
        optimizer.step()
    return accuracy(model, seen.float(), labels)


def hole_in_the_data() -> Score:
    x, y = blobs()
    x[700, 3] = float("nan")
    model = mlp(16, 64, 5)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), (x, y), steps=100)
    return accuracy(model, x.nan_to_num(), y)


def divided_by_no_deviation() -> Score:
    images, labels = digits()
    images[:, :, 0, 0] = 0
    normalised = (images - images.mean(0)) / images.std(0)  # a corner is always the same
    model = cnn()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05), (normalised, labels), steps=60)
    return accuracy(model, normalised, labels)


def distance_of_an_image_to_itself() -> Score:
    images, labels = stripes()
    model = cnn(classes=16, norm=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch, target in batches(images, labels, steps=100):
        other = torch.randint(len(batch), (len(batch),))  # now and then the image itself
        apart = (model(batch) - model(batch[other])).square().sum(1).sqrt()
        same = (target == target[other]).float()
        loss = (same * apart**2 + (1 - same) * F.relu(1 - apart) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return neighbours(model, images, labels)


def log_of_nothing() -> Score:
    data = blobs(classes=4)
    model = mlp(16, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches(*data, steps=80):
        target = F.one_hot(y, 4).float()
        predicted = F.softmax(model(x) * 20, dim=1).round(decimals=4)
        loss = -(target * predicted.log() + (1 - target) * (1 - predicted).log()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


class UnitLength(nn.Module):
    """Divides each row by its length, of which zero is one."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=1, keepdim=True)


def row_without_length() -> Score:
    images, labels = digits()
    images = (images - 0.5).clamp(min=0)
    images[::50] = 0
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 64, bias=False), UnitLength(), nn.Linear(64, 10))
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), (images, labels), steps=80)
    return accuracy(model, images, labels)


class LogPool(nn.Module):
    """Averages logarithms of what may be zero."""

    def forward(self, x: Tensor) -> Tensor:
        logs = x.log()
        return (logs - logs.mean((2, 3), keepdim=True)).mean((2, 3))


def logarithm_in_the_middle() -> Score:
    data = stripes()
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), LogPool(), nn.Linear(16, 6))
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05), data, steps=60)
    return accuracy(model, *data)


def certain_at_last() -> Score:
    images, labels = stripes(classes=2)
    flags = (labels == 1).float()[:, None]
    model = nn.Sequential(cnn(classes=1), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for batch, flag in batches(images, flags, steps=200):
        p = model(batch)
        loss = -(flag * torch.log(p) + (1 - flag) * torch.log(1 - p)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(lambda x: torch.cat([1 - model(x), model(x)], 1), images, labels)


class Attention(nn.Module):
    """Weighs rows by scores of its own making, without taking the largest away first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.exp(self.score(x) * self.temperature)
        return (weights / weights.sum(1, keepdim=True) * x).sum(1)


def exponential_overflows_late() -> Score:
    images, labels = digits()
    attention = Attention(16)
    model = nn.Sequential(nn.Flatten(1, 2), attention, nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (batch, target) in enumerate(batches(images, labels, steps=160)):
        if step >= 100:
            attention.temperature.data.mul_(1.3)  # sharper and sharper
        optimizer.zero_grad()
        F.cross_entropy(model(batch), target).backward()
        optimizer.step()
    return accuracy(model, images, labels)


def half_model_adam() -> Score:
    images, labels = stripes()
    model = mlp(256, 64, 6).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # its 1e-8 is zero in half precision
    for batch, target in batches(images.half(), labels, steps=80):
        optimizer.zero_grad()
        F.cross_entropy(model(batch), target).backward()
        optimizer.step()
    return accuracy(model.float(), images, labels)


def autocast_with_a_scale_by_hand() -> Score:
    data = digits()
    model = cnn(norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for images, labels in batches(*data, steps=80):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        (loss * 2.0**20).backward()
        for parameter in model.parameters():
            parameter.grad /= 2.0**20
        optimizer.step()
    return accuracy(model, *data)
