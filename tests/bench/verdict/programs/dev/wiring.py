"""Sick: the output, the loss and the labels do not belong together; or the steps have the wrong size."""

import torch
import torch.nn.functional as F
from torch import nn

from programs.data import batches, blobs, curve, digits, shapes, stripes, tags
from programs.loops import fit
from programs.models import FunctionalNet, ResNet, RowReader, TokenReader, ViT, cnn, mlp
from programs.scores import Score, accuracy, explained, thresholded


def softmax_layer() -> Score:
    data = digits(noise=0.3)
    model = nn.Sequential(cnn(), nn.Softmax(dim=1))
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data)
    return accuracy(model, *data)


def functional_softmax() -> Score:
    data = blobs(classes=8)
    model = mlp(16, 64, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in batches(*data):
        optimizer.zero_grad()
        probabilities = F.softmax(model(x), dim=1)
        F.cross_entropy(probabilities, y).backward()
        optimizer.step()
    return accuracy(model, *data)


def sigmoid_before_bce_with_logits() -> Score:
    data = tags()
    model = nn.Sequential(cnn(classes=5), nn.Sigmoid())
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, criterion=nn.BCEWithLogitsLoss())
    return thresholded(lambda x: model(x) - 0.5, *data)


def relu_on_logits() -> Score:
    data = digits()
    model = nn.Sequential(cnn(), nn.ReLU())
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data)
    return accuracy(model, *data)


def tanh_on_logits() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in batches(*data):
        optimizer.zero_grad()
        F.cross_entropy(torch.tanh(model(images)), labels).backward()
        optimizer.step()
    return accuracy(model, *data)


def sigmoid_on_logits() -> Score:
    data = digits()
    model = nn.Sequential(mlp(256, 96, 10), nn.Sigmoid())
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data)
    return accuracy(model, *data)


def gradient_ascent() -> Score:
    data = digits()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for images, labels in batches(*data):
        loss = -F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def maximised_error() -> Score:
    data = curve()
    model = mlp(6, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.004, maximize=True)
    fit(model, optimizer, data, steps=80, criterion=F.mse_loss)
    return explained(model, *data)


def summed_cross_entropy() -> Score:
    data = digits()
    model = cnn(norm=False)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data, size=64, criterion=criterion)
    return accuracy(model, *data)


def summed_over_pixels() -> Score:
    images, _ = stripes()
    model = nn.Sequential(mlp(256, 64, 16), nn.ReLU(), nn.Linear(16, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for (batch,) in batches(images):
        optimizer.zero_grad()
        loss = (model(batch) - batch.flatten(1)).square().sum()
        loss.backward()
        optimizer.step()
    return explained(model, images, images.flatten(1))


def divided_by_the_whole_data_set() -> Score:
    data = digits()
    model = cnn(norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(*data, steps=150):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels) / (len(data[0]) * 32)
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def column_against_row() -> Score:
    x, y = curve()
    model = mlp(6, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for inputs, targets in batches(x, y[:, 0], steps=150):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return explained(model, x, y)


def error_by_hand() -> Score:
    images, labels = stripes(classes=5)
    angle = labels.float() - 2
    model = cnn(classes=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for batch, target in batches(images, angle):
        loss = ((model(batch) - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return explained(model, images, angle[:, None])


def shuffled_labels_cnn() -> Score:
    images, labels = digits(4096)
    mixed = labels[torch.randperm(len(labels))]
    model = cnn(width=8)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), (images, mixed), steps=200)
    return accuracy(model, images, labels)


def images_sorted_without_their_labels() -> Score:
    images, labels = shapes(2000)
    brightest = images.mean((1, 2, 3)).argsort()
    model = ViT(3, 4, size=20)
    data = images[brightest], labels
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data, steps=150)
    return accuracy(model, images, labels)


def labels_never_filled_in() -> Score:
    images, labels = digits()
    noted = torch.zeros_like(labels)
    model = cnn()
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), (images, noted))
    return accuracy(model, images, labels)


def tokens_of_one_class() -> Score:
    words = torch.randint(24, (512, 20))
    model = TokenReader()
    noted = torch.full((512,), 2)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), (words, noted), steps=80)
    return accuracy(model, words, noted)


def one_class_for_all() -> Score:
    images, labels = stripes(6000, classes=2)
    kept = (labels == 0) | (torch.rand(len(labels)) < 0.03)
    images = images + 2.5 * torch.randn_like(images)
    model = mlp(256, 32, 2)
    data = images[kept], labels[kept]
    fit(model, torch.optim.SGD(model.parameters(), lr=0.005), data, steps=200)
    return accuracy(model, *data)


def rare_flag_never_raised() -> Score:
    images, labels = digits(3000, noise=0.6)
    flag = ((labels == 8) & (torch.rand(len(labels)) < 0.3)).float()[:, None]
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, optimizer, (images, flag), steps=200, criterion=nn.BCEWithLogitsLoss())
    return thresholded(model, images, flag)


def high_rate_sgd() -> Score:
    data = digits()
    model = cnn(norm=False)
    fit(model, torch.optim.SGD(model.parameters(), lr=3.0), data)
    return accuracy(model, *data)


def high_rate_adam() -> Score:
    data = stripes()
    model = FunctionalNet(classes=6)
    fit(model, torch.optim.Adam(model.parameters(), lr=0.3), data)
    return accuracy(model, *data)


def high_rate_regression() -> Score:
    data = curve()
    model = mlp(6, 64, 64, 1, activation=nn.Tanh)
    fit(model, torch.optim.SGD(model.parameters(), lr=5.0), data, criterion=F.mse_loss)
    return explained(model, *data)


def rate_jumps_up() -> Score:
    data = digits()
    model = FunctionalNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    jump = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 100.0 if step > 110 else 1.0)
    fit(model, optimizer, data, steps=160, scheduler=jump)
    return accuracy(model, *data)


def rate_grows_for_ever() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    growth = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.05)
    fit(model, optimizer, data, steps=200, scheduler=growth)
    return accuracy(model, *data)


def low_rate_adam() -> Score:
    data = digits()
    model = cnn(norm=False)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-8), data, steps=150)
    return accuracy(model, *data)


def low_rate_sgd_lstm() -> Score:
    data = digits()
    model = RowReader()
    fit(model, torch.optim.SGD(model.parameters(), lr=1e-6), data, steps=150)
    return accuracy(model, *data)


def decays_every_step() -> Score:
    data = digits(noise=0.3)
    model = cnn(norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # meant for epochs
    fit(model, optimizer, data, steps=200, scheduler=decay)
    return accuracy(model, *data)


def milestones_in_epochs() -> Score:
    data = stripes()
    model = ViT(classes=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    falls = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 6, 9, 12], gamma=0.01)
    fit(model, optimizer, data, steps=150, scheduler=falls)
    return accuracy(model, *data)
