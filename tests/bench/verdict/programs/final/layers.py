"""Sick: layers that are dead, saturated or badly initialised."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import curve, digits, masks_of_shapes, shapes, stripes, tags
from programs.loops import fit
from programs.models import AutoEncoder, FunctionalNet, ResNet, RowReader, UNet, cnn, mlp
from programs.scores import Score, accuracy, explained, thresholded


def saturated_sigmoid_cnn() -> Score:
    data = stripes()
    model = cnn(classes=6, norm=False, activation=nn.Sigmoid)
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, std=8.0)
            nn.init.constant_(layer.bias, 20.0)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.001), data)
    return accuracy(model, *data)


class DeepTanh(nn.Module):
    """tanh as a function, of sums that are far too large."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 80), nn.Linear(80, 80), nn.Linear(80, 80)])
        self.head = nn.Linear(80, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = torch.tanh(30 * layer(x))
        return self.head(x)


def functional_tanh() -> Score:
    data = digits(noise=0.3)
    model = DeepTanh()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.002), data, steps=150)
    return accuracy(model, *data)


def deep_sigmoid_regression() -> Score:
    data = curve()
    model = mlp(6, *[48] * 6, 1, activation=nn.Sigmoid)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05), data, steps=200, criterion=F.mse_loss)
    return explained(model, *data)


def ten_sigmoids_adam() -> Score:
    data = stripes()
    model = mlp(256, *[48] * 10, 6, activation=nn.Sigmoid)
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-4), data, steps=150)
    return accuracy(model, *data)


def dead_bottleneck() -> Score:
    images, _ = digits()
    model = AutoEncoder()
    model.encoder.append(nn.ReLU())
    nn.init.constant_(model.encoder[3].bias, -12.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, optimizer, (images, images), steps=150, criterion=F.mse_loss)
    return explained(model, images, images)


def dead_in_a_deep_stack() -> Score:
    data = tags()
    model = mlp(256, 64, 64, 64, 5)
    with torch.no_grad():
        model[5].weight.abs_().neg_()  # all negative, behind a ReLU
        model[5].bias.fill_(-0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(model, optimizer, data, criterion=nn.BCEWithLogitsLoss())
    return thresholded(model, *data)


def dead_hidden_layer() -> Score:
    data = shapes()
    model = FunctionalNet(3, 4)
    nn.init.uniform_(model.fc1.bias, -40.0, -30.0)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), data)
    return accuracy(model, *data)


class ClampedBlocks(nn.Module):
    """Convolutions with `clamp` for a ReLU, of which one lets nothing through."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 12, 3, 2, 1), nn.Conv2d(12, 12, 3, 2, 1)
        self.head = nn.Linear(192, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.a(x) - 30)
        return self.head(F.relu(self.b(x)).flatten(1))


def offset_too_large() -> Score:
    data = stripes()
    model = ClampedBlocks()
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data)
    return accuracy(model, *data)


def half_dead_mlp() -> Score:
    data = digits()
    model = mlp(256, 96, 96, 10)
    with torch.no_grad():
        model[3].bias[48:] = -25.0
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=150)
    return accuracy(model, *data)


def half_dead_unet() -> Score:
    images, masks = masks_of_shapes()
    model = UNet()
    with torch.no_grad():
        model.bottom[0].bias[:14] = -20.0
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), (images, masks), steps=100, size=16)
    return accuracy(model, images, masks)


def rows_read_from_zero() -> Score:
    data = digits()
    model = RowReader(nn.GRU)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.0)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=150)
    return accuracy(model, *data)


def regression_from_zero() -> Score:
    data = curve()
    model = mlp(6, 64, 64, 1, activation=nn.Tanh)
    model.apply(lambda layer: nn.init.zeros_(layer.weight) if isinstance(layer, nn.Linear) else None)
    model.apply(lambda layer: nn.init.zeros_(layer.bias) if isinstance(layer, nn.Linear) else None)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data, criterion=F.mse_loss)
    return explained(model, *data)


def convolutions_alike() -> Score:
    data = shapes()
    model = cnn(3, 4, norm=False)
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.constant_(layer.weight, 0.05)
            nn.init.constant_(layer.bias, 0.1)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), data)
    return accuracy(model, *data)


def tags_from_ones() -> Score:
    data = tags()
    model = mlp(256, 48, 32, 5, activation=nn.Tanh)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.01)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, criterion=nn.BCEWithLogitsLoss())
    return thresholded(model, *data)


def huge_convolutions() -> Score:
    data = digits()
    model = FunctionalNet()
    for layer in (model.conv1, model.conv2, model.fc1, model.fc2):
        nn.init.uniform_(layer.weight, -2, 2)
    fit(model, torch.optim.SGD(model.parameters(), lr=1e-5), data)
    return accuracy(model, *data)


def huge_regression() -> Score:
    data = curve()
    model = mlp(6, 64, 64, 1)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=5.0)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, criterion=F.mse_loss)
    return explained(model, *data)


def resnet_of_one_image() -> Score:
    data = shapes()
    model = ResNet(3, 4, blocks=1)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=150, size=1)
    return accuracy(model, *data)


def elu_cnn_of_one_image() -> Score:
    images, labels = stripes()
    layers = [
        nn.Conv2d(1, 24, 5, 2, 2),
        nn.BatchNorm2d(24),
        nn.ELU(),
        nn.Conv2d(24, 24, 3, 2, 1),
        nn.BatchNorm2d(24),
    ]
    model = nn.Sequential(*layers, nn.ELU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(24, 6))
    fit(model, torch.optim.SGD(model.parameters(), lr=0.01), (images, labels), steps=200, size=1)
    return accuracy(model, images, labels)
