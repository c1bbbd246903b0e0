"""Sick: what comes in, and numbers that stop being finite."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, blobs, curve, digits, masks_of_shapes, shapes, stripes, tags
from programs.loops import fit
from programs.models import AutoEncoder, RowReader, ViT, cnn, mlp
from programs.scores import Score, accuracy, explained, neighbours, thresholded


def raw_pixels_rnn() -> Score:
    images, labels = stripes()
    pixels = ((images + 2) * 60).clamp(0, 255)
    model = RowReader(nn.RNN, classes=6)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), (pixels, labels), steps=150)
    return accuracy(model, pixels, labels)


def raw_pixels_autoencoder() -> Score:
    images, _ = shapes(size=12)
    pixels = ((images + 1) * 60).clamp(0, 255)
    model = AutoEncoder(n_in=432, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, optimizer, (pixels, pixels), steps=150, criterion=F.mse_loss)
    return explained(model, pixels, pixels)


def same_image_again_and_again() -> Score:
    images, labels = stripes()
    copies = images[:1].expand(len(labels), -1, -1, -1)  # an index that never moves
    model = cnn(classes=6, norm=False)
    fit(model, torch.optim.Adam(model.parameters(), lr=5e-4), (copies, labels), steps=150)
    return accuracy(model, copies, labels)


def one_for_every_feature() -> Score:
    _, y = curve()
    x = torch.ones(len(y), 6)
    model = mlp(6, 32, 1)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.02), (x, y), steps=150, criterion=F.mse_loss)
    return explained(model, x, y)


def standardised_by_a_constant_column() -> Score:
    x, y = curve(features=7)
    x[:, 6] = 1
    x = (x - x.mean(0)) / x.std(0)
    model = mlp(7, 48, 1, activation=nn.Tanh)
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), (x, y), steps=60, criterion=F.mse_loss)
    return explained(model, x, y)


def some_images_are_broken() -> Score:
    images, labels = shapes()
    images[400:404] = float("inf")
    model = ViT(3, 4, size=20)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), (images, labels), steps=60)
    return accuracy(model, images, labels)


def divided_by_an_empty_mask() -> Score:
    images, masks = masks_of_shapes()
    masks[::8] = 0
    model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 5, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for batch, mask in batches(images, masks, size=16, steps=60):
        each = F.cross_entropy(model(batch), mask, reduction="none")
        shape = (mask > 0).float()
        loss = ((each * shape).sum((1, 2)) / shape.sum((1, 2))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, images, masks)


def arc_cosine_of_equal_directions() -> Score:
    images, labels = stripes(classes=4)
    body = cnn(classes=12, norm=False)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.02, momentum=0.9)
    for batch, target in batches(images, labels, steps=80):
        points = F.normalize(body(batch), dim=1)
        angles = torch.acos(points @ points.T)  # of a point with itself as well
        same = (target[:, None] == target).float()
        loss = (same * angles + (1 - same) * F.relu(1.5 - angles)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return neighbours(body, images, labels)


class Standardise(nn.Module):
    """Takes away the mean and divides by the deviation of each row, without an epsilon."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def deviation_of_a_dead_row() -> Score:
    images, flags = tags()
    images[::40] = 0
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 48, bias=False), nn.ReLU(), Standardise(), nn.Linear(48, 5)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(model, optimizer, (images, flags), steps=60, criterion=nn.BCEWithLogitsLoss())
    return thresholded(model, images, flags)


class Power(nn.Module):
    """A learnt power of what may be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return x**self.power


def power_of_a_negative() -> Score:
    data = digits()
    model = nn.Sequential(cnn(classes=32), Power(), nn.Linear(32, 10))
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data, steps=50)
    return accuracy(model, *data)


def product_of_probabilities() -> Score:
    points, labels = blobs(classes=3)
    model = mlp(16, 48, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for x, y in batches(points, labels, steps=250):
        p = F.softmax(model(x), dim=1)
        wrong = 1 - F.one_hot(y, 3)
        loss = -(wrong * torch.log(1 - p)).sum(1).mean() - (p * torch.log(p)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, points, labels)


class Shrinking(nn.Module):
    """Divides by a running size of its input that is brought down in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("size", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.size -= 0.01
        return torch.sqrt(self.size) * x


def root_of_a_falling_buffer() -> Score:
    data = stripes()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), Shrinking(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 6),
    )  # fmt: skip
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data, steps=150)
    return accuracy(model, *data)


def half_sum_of_squares() -> Score:
    data = shapes()
    model = mlp(1200, 96, 4).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for images, labels in batches(*data, steps=60):
        logits = model(images.half())
        smooth = sum((p * 256).square().sum() for p in model.parameters()) / 65536
        loss = F.cross_entropy(logits, labels) + 0.01 * smooth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model.float(), *data)


def autocast_of_raw_numbers() -> Score:
    x, y = curve()
    model = mlp(6, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for inputs, targets in batches(x * 30_000, y, steps=60):
        with torch.autocast("cpu", dtype=torch.float16):
            predicted = model(inputs)
            loss = ((predicted - targets.half()) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return explained(model, x * 30_000, y)
