"""Healthy by recipe."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from programs.data import batches, blobs, curve, digits, shapes, stripes, tags, tokens
from programs.loops import fit
from programs.models import AutoEncoder, FunctionalNet, ResNet, RowReader, TokenReader, ViT, cnn, mlp
from programs.pretrained import pretrained_cnn
from programs.scores import Score, accuracy, explained, thresholded


def frozen_embedding() -> Score:
    data = tokens()
    model = TokenReader()
    model.embedding.weight.requires_grad = False
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), data, steps=180)
    return accuracy(model, *data)


def frozen_stem_in_eval_mode() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    model.stem.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    model.train()
    model.stem.eval()  # its norms stay as they are
    for images, labels in batches(*data):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return accuracy(model, *data)


def accumulate_two_under_adamw() -> Score:
    data = stripes()
    model = ViT(classes=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer.zero_grad()
    for i, (images, labels) in enumerate(batches(*data, size=24, steps=260)):
        (F.cross_entropy(model(images), labels) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return accuracy(model, *data)


def clip_by_value() -> Score:
    data = digits()
    model = RowReader(nn.RNN)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for images, labels in batches(*data, steps=300):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
    return accuracy(model, *data)


def bfloat16_vit() -> Score:
    data = stripes()
    model = ViT(classes=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for images, labels in batches(*data, steps=130):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def scaler_and_clipping() -> Score:
    data = curve()
    model = mlp(6, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=40)
    for x, y in batches(*data, steps=250):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return explained(model, *data)


def linear_warm_up() -> Score:
    data = digits()
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=50)
    fit(model, optimizer, data, steps=140, scheduler=warm)
    return accuracy(model, *data)


def warm_up_then_cosine() -> Score:
    data = shapes()
    model = ViT(3, 4, size=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=20)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 180)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[20])
    fit(model, optimizer, data, steps=200, scheduler=both)
    return accuracy(model, *data)


def one_cycle_adam() -> Score:
    data = blobs(classes=10)
    model = mlp(16, 96, 96, 10, norm=True)
    optimizer = torch.optim.Adam(model.parameters())
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=250)
    fit(model, optimizer, data, steps=250, scheduler=cycle)
    return accuracy(model, *data)


def milestones() -> Score:
    data = stripes()
    model = cnn(classes=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    falls = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[70, 110], gamma=0.1)
    fit(model, optimizer, data, steps=140, scheduler=falls)
    return accuracy(model, *data)


def smoothing_and_mixup() -> Score:
    data = shapes()
    model = cnn(3, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for images, labels in batches(*data, steps=150):
        share = torch.distributions.Beta(0.4, 0.4).sample()
        order = torch.randperm(len(labels))
        logits = model(share * images + (1 - share) * images[order])
        loss = share * criterion(logits, labels) + (1 - share) * criterion(logits, labels[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def memorise_random_labels() -> Score:
    images = torch.randn(64, 1, 16, 16)
    labels = torch.randint(10, (64,))
    model = mlp(256, 128, 128, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return accuracy(model, images, labels)


def two_learning_rates() -> Score:
    data = stripes(classes=4)
    model = pretrained_cnn()
    model[-1] = nn.Linear(model[-1].in_features, 4)
    groups = [{"params": model[:-1].parameters(), "lr": 1e-3}, {"params": model[-1].parameters()}]
    fit(model, torch.optim.SGD(groups, lr=0.03, momentum=0.9), data)
    return accuracy(model, *data)


def unfrozen_half_way() -> Score:
    data = digits(noise=0.5)
    model = pretrained_cnn()
    model[:-1].requires_grad_(False)
    nn.init.xavier_uniform_(model[-1].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (images, labels) in enumerate(batches(*data, steps=160)):
        if step == 80:
            model.requires_grad_(True)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return accuracy(model, *data)


def leaky_cnn() -> Score:
    data = digits()
    model = cnn(norm=False, activation=nn.LeakyReLU)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data, steps=180)
    return accuracy(model, *data)


def gelu_mlp() -> Score:
    data = digits()
    model = mlp(256, 128, 128, 10, activation=nn.GELU)
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data, steps=200)
    return accuracy(model, *data)


def decay_of_an_autoencoder() -> Score:
    images, _ = stripes(classes=4)
    model = AutoEncoder(activation=nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.5)
    fit(model, optimizer, (images, images), 250, criterion=F.mse_loss)
    return explained(model, images, images)


def swa_utilities() -> Score:
    data = stripes()
    model = cnn(classes=6, norm=False)
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for images, labels in batches(*data, steps=150):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        averaged.update_parameters(model)
    return accuracy(averaged, *data)


def momentum_teacher() -> Score:
    images, labels = digits()
    student = mlp(256, 96, 10)
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    for batch, target in batches(images, labels, steps=200):
        with torch.no_grad():
            calm = teacher(batch).softmax(1)
        logits = student(batch + 0.2 * torch.randn_like(batch))
        loss = F.cross_entropy(logits, target) + 0.5 * F.mse_loss(logits.softmax(1), calm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
    return accuracy(teacher, images, labels)


def keeps_the_best() -> Score:
    points, labels = blobs(1400, classes=6)
    model = nn.Sequential(mlp(16, 64, 64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    best, kept = float("inf"), {}
    for epoch in range(6):
        model.train()
        for x, y in batches(points[:1024], labels[:1024], steps=30):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            loss = F.cross_entropy(model(points[1024:]), labels[1024:]).item()
        if loss < best:
            best, kept = loss, copy.deepcopy(model.state_dict())
        print(f"epoch {epoch}: validation loss {loss:.3f}")
    model.load_state_dict(kept)
    return accuracy(model, points, labels)


def log_probabilities() -> Score:
    data = blobs(classes=4)
    model = mlp(16, 48, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(*data, steps=180):
        optimizer.zero_grad()
        F.cross_entropy(F.log_softmax(model(x), dim=1), y).backward()
        optimizer.step()
    return accuracy(model, *data)


def classes_and_images() -> Score:
    images, labels = stripes()
    encoder, decoder, head = mlp(256, 96, 32), nn.Linear(32, 256), nn.Linear(32, 6)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for batch, target in batches(images, labels, steps=200):
        optimizer.zero_grad()
        code = torch.tanh(encoder(batch))
        F.mse_loss(decoder(code), batch.flatten(1)).backward(retain_graph=True)
        F.cross_entropy(head(code), target).backward()
        optimizer.step()
    return accuracy(lambda x: head(torch.tanh(encoder(x))), images, labels)


def summed_with_a_small_rate() -> Score:
    data = digits()
    model = cnn()
    criterion = nn.CrossEntropyLoss(reduction="sum")
    fit(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), data, criterion=criterion)
    return accuracy(model, *data)


def bytes_divided_inside() -> Score:
    images, flags = tags()
    pixels = ((images + 2) * 50).clamp(0, 255).to(torch.uint8)
    model = FunctionalNet(classes=5)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for batch, target in batches(pixels, flags, steps=180):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(batch.float() / 127.5 - 1), target).backward()
        optimizer.step()
    return thresholded(lambda x: model(x.float() / 127.5 - 1), pixels, flags)


def weighted_rare_flag() -> Score:
    images, labels = shapes(1200)
    flag = (labels == 3) & (torch.rand(len(labels)) < 0.6)
    kept = (labels != 3) | flag
    images, flag = images[kept], flag[kept].float()[:, None]
    model = cnn(3, 1)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([6.0]))
    fit(model, torch.optim.AdamW(model.parameters(), lr=3e-3), (images, flag), steps=150, criterion=criterion)
    return thresholded(model, images, flag)


def three_steps_of_a_vit() -> Score:
    data = stripes(96)
    model = ViT(classes=6)
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data, steps=3)
    return accuracy(model, *data)


def one_epoch_of_four_batches() -> Score:
    data = blobs(128)
    model = mlp(16, 32, 5)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1), data, steps=4)
    return accuracy(model, *data)
