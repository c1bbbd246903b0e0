"""Healthy by recipe: schedules, precision, frozen parts and other habits that look like faults from inside."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from programs.data import batches, blobs, curve, digits, shapes, stripes
from programs.loops import fit
from programs.models import FunctionalNet, ResNet, ViT, cnn, mlp
from programs.pretrained import pretrained_cnn
from programs.scores import Score, accuracy, explained


def frozen_not_in_the_optimizer() -> Score:
    data = stripes()
    model = cnn(classes=6)
    for parameter in model[:4].parameters():
        parameter.requires_grad = False
    trained = filter(lambda p: p.requires_grad, model.parameters())
    fit(model, torch.optim.Adam(trained, lr=2e-3), data)
    return accuracy(model, *data)


def frozen_in_the_optimizer() -> Score:
    data = digits()
    model = FunctionalNet()
    model.conv1.requires_grad_(False)
    fit(model, torch.optim.AdamW(model.parameters(), lr=2e-3), data, steps=200)
    return accuracy(model, *data)


def accumulate_four() -> Score:
    data = digits()
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i, (images, labels) in enumerate(batches(*data, size=16, steps=240)):
        loss = F.cross_entropy(model(images), labels) / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return accuracy(model, *data)


def clip_by_norm() -> Score:
    data = digits()
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for images, labels in batches(*data):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return accuracy(model, *data)


def autocast_bfloat16() -> Score:
    data = digits()
    model = cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for images, labels in batches(*data):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def scaler_that_skips() -> Score:
    data = blobs()
    model = mlp(16, 64, 64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    for inputs, labels in batches(*data):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return accuracy(model, *data)


def warm_up_vit() -> Score:
    data = stripes()
    model = ViT(classes=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 60))
    fit(model, optimizer, data, steps=200, scheduler=warm)
    return accuracy(model, *data)


def cosine_resnet() -> Score:
    data = digits()
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=150)
    fit(model, optimizer, data, steps=150, scheduler=cosine)
    return accuracy(model, *data)


def one_cycle_cnn() -> Score:
    data = shapes()
    model = cnn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=200)
    fit(model, optimizer, data, steps=200, scheduler=cycle)
    return accuracy(model, *data)


def step_lr_rmsprop() -> Score:
    data = digits()
    model = cnn(norm=False)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    fall = torch.optim.lr_scheduler.StepLR(optimizer, step_size=60, gamma=0.1)
    fit(model, optimizer, data, steps=180, scheduler=fall)
    return accuracy(model, *data)


def smoothed_labels() -> Score:
    data = digits()
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(model, optimizer, data, criterion=nn.CrossEntropyLoss(label_smoothing=0.1))
    return accuracy(model, *data)


def memorise_digits() -> Score:
    images, labels = digits(64)
    model = cnn(width=8, norm=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return accuracy(model, images, labels)


def fine_tune_everything() -> Score:
    images, labels = digits()
    data = -images, labels  # black on white now
    model = pretrained_cnn()
    fit(model, torch.optim.AdamW(model.parameters(), lr=5e-4), data, steps=150)
    return accuracy(model, *data)


def fine_tune_a_new_head() -> Score:
    data = stripes()
    model = pretrained_cnn()
    model.requires_grad_(False)
    model[-1] = nn.Linear(model[-1].in_features, 6)
    fit(model, torch.optim.Adam(model[-1].parameters(), lr=3e-3), data, steps=150)
    return accuracy(model, *data)


def silu_cnn() -> Score:
    data = digits()
    model = cnn(activation=nn.SiLU)
    fit(model, torch.optim.AdamW(model.parameters(), lr=2e-3), data)
    return accuracy(model, *data)


def strong_weight_decay() -> Score:
    data = digits()
    model = cnn()
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2), data, steps=200)
    return accuracy(model, *data)


def ema_copy() -> Score:
    data = digits()
    model = cnn()
    averaged = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for i, (images, labels) in enumerate(batches(*data, steps=150)):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(averaged.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
            for slow, fast in zip(averaged.buffers(), model.buffers(), strict=True):
                slow.copy_(fast)
        if i % 50 == 49:
            averaged.eval()
            with torch.no_grad():
                print("averaged", (averaged(data[0][:256]).argmax(1) == data[1][:256]).float().mean().item())
    return accuracy(averaged, *data)


def evaluate_every_epoch() -> Score:
    images, labels = digits(1280)
    model = nn.Sequential(*cnn(), nn.Dropout(0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(5):
        model.train()
        for batch, target in batches(images[:1024], labels[:1024], steps=32):
            optimizer.zero_grad()
            F.cross_entropy(model(batch), target).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(images[1024:]).argmax(1) == labels[1024:]).float().mean()
        print(f"epoch {epoch}: {right:.3f}")
    return accuracy(model, images, labels)


def log_softmax_and_cross_entropy() -> Score:
    data = digits()
    model = nn.Sequential(cnn(), nn.LogSoftmax(dim=1))
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), data)
    return accuracy(model, *data)


def two_heads() -> Score:
    images, labels = digits()
    trunk, what, how_bright = mlp(256, 96, 64), nn.Linear(64, 10), nn.Linear(64, 1)
    brightness = images.amax((2, 3))
    parameters = [*trunk.parameters(), *what.parameters(), *how_bright.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2e-3)
    for batch, target, bright in batches(images, labels, brightness, steps=200):
        features = F.relu(trunk(batch))
        loss = F.cross_entropy(what(features), target) + 0.3 * F.mse_loss(how_bright(features), bright)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(lambda x: what(F.relu(trunk(x))), images, labels)


def raw_pixels_behind_a_norm() -> Score:
    images, labels = digits()
    pixels = (images - images.min()) / (images.max() - images.min()) * 255
    model = nn.Sequential(nn.BatchNorm2d(1), *cnn())
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), (pixels, labels))
    return accuracy(model, pixels, labels)


def raw_targets() -> Score:
    x, y = curve()
    prices = 30 + 10 * y
    model = mlp(6, 64, 64, 1)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-2), (x, prices), steps=300, criterion=F.mse_loss)
    return explained(model, x, prices)


def rare_class() -> Score:
    images, labels = stripes(1500, classes=3)
    kept = (labels != 2) | (torch.rand(len(labels)) < 0.15)
    data = images[kept], labels[kept]
    model = cnn(classes=3)
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), data)
    return accuracy(model, *data)


def three_steps() -> Score:
    data = digits(128)
    model = cnn()
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=3)
    return accuracy(model, *data)


def dry_run_of_a_resnet() -> Score:
    data = shapes(128)
    model = ResNet(3, 4)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data, steps=5)
    return accuracy(model, *data)
