"""Sick: layers that are dead, saturated or badly initialised."""

import torch
import torch.nn.functional as F
from torch import nn

from programs.data import batches, blobs, curve, digits, shapes, stripes
from programs.loops import fit
from programs.models import FunctionalNet, ResNet, ViT, cnn, mlp
from programs.scores import Score, accuracy, explained


def saturated_tanh() -> Score:
    data = digits()
    model = mlp(256, 96, 96, 96, 10, activation=nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=3.0)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.01), data, steps=150)
    return accuracy(model, *data)


def saturated_sigmoid_after_big_inputs() -> Score:
    x, y = curve()
    model = mlp(6, 64, 64, 1, activation=nn.Sigmoid)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.01), (x * 400, y), steps=200, criterion=F.mse_loss)
    return explained(model, x * 400, y)


def eight_sigmoids() -> Score:
    data = digits()
    model = mlp(256, *[64] * 8, 10, activation=nn.Sigmoid)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data, steps=150)
    return accuracy(model, *data)


def sigmoid_cnn() -> Score:
    data = stripes()
    layers: list[nn.Module] = [nn.Conv2d(1, 12, 3, padding=1), nn.Sigmoid()]
    for _ in range(5):
        layers += [nn.Conv2d(12, 12, 3, padding=1), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(192, 6))
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-4), data, steps=100)
    return accuracy(model, *data)


def dead_by_its_bias() -> Score:
    data = digits()
    model = mlp(256, 96, 64, 10)
    nn.init.constant_(model[3].bias, -20.0)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data, steps=150)
    return accuracy(model, *data)


def dead_by_a_negative_scale() -> Score:
    data = shapes()
    model = cnn(3, 4)
    model[5].weight.data.fill_(0.3)
    model[5].bias.data.fill_(-6.0)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-4), data, steps=100)
    return accuracy(model, *data)


def dead_in_forward() -> Score:
    data = digits()
    model = FunctionalNet()
    nn.init.constant_(model.conv2.bias, -15.0)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=150)
    return accuracy(model, *data)


def dead_in_the_script() -> Score:
    data = blobs()
    first, second = nn.Linear(16, 64), nn.Linear(64, 5)
    with torch.no_grad():
        first.bias -= 25
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    for x, y in batches(*data):
        hidden = first(x).relu()
        loss = F.cross_entropy(second(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(lambda points: second(first(points).relu()), *data)


def half_dead_cnn() -> Score:
    data = digits()
    model = cnn(norm=False)
    model[3].bias.data[::2] = -30.0
    fit(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), data, steps=150)
    return accuracy(model, *data)


def half_dead_resnet() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    model.stem[1].weight.data[8:] = 0.05
    model.stem[1].bias.data[8:] = -3.0
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data)
    return accuracy(model, *data)


def all_weights_zero() -> Score:
    data = digits()
    model = mlp(256, 64, 64, 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data)
    return accuracy(model, *data)


def convolutions_zero() -> Score:
    data = stripes()
    model = cnn(classes=6, norm=False)
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data)
    return accuracy(model, *data)


def all_weights_alike() -> Score:
    data = digits()
    model = mlp(256, 64, 64, 10)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, 0.02)
            nn.init.zeros_(layer.bias)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data, steps=150)
    return accuracy(model, *data)


def filters_alike() -> Score:
    data = stripes()
    model = cnn(classes=6, activation=nn.LeakyReLU)
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.ones_(layer.weight)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data)
    return accuracy(model, *data)


def standard_normal_weights() -> Score:
    data = digits()
    model = mlp(256, 128, 128, 128, 10)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-4), data)
    return accuracy(model, *data)


def huge_vit() -> Score:
    data = stripes()
    model = ViT(classes=6)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=20.0)
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data)
    return accuracy(model, *data)


def one_image_at_a_time() -> Score:
    images, labels = digits()
    model = cnn(width=8)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), (images, labels), 200, size=1)
    return accuracy(model, images, labels)


def norm_of_one_pixel_each() -> Score:
    data = shapes()
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=200, size=1)
    return accuracy(model, *data)
