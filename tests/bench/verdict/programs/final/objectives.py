"""Healthy by what is learnt: images, likenesses, likelihoods and rewards instead of classes."""

import torch
import torch.nn.functional as F
from torch import nn

from programs.data import batches, blobs, curve, digits, stripes, text
from programs.loops import fit
from programs.models import FunctionalNet, cnn, mlp
from programs.scores import Score, accuracy, explained, neighbours


def convolutional_autoencoder() -> Score:
    images, _ = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.LeakyReLU(), nn.Conv2d(16, 12, 3, 2, 1), nn.LeakyReLU(),
        nn.ConvTranspose2d(12, 16, 2, 2), nn.LeakyReLU(), nn.ConvTranspose2d(16, 1, 2, 2),
    )  # fmt: skip
    fit(model, torch.optim.AdamW(model.parameters(), lr=5e-3), (images, images), 200, criterion=nn.L1Loss())
    return explained(model, images, images)


def denoising_vae() -> Score:
    images, _ = stripes(classes=3)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 96), nn.SiLU(), nn.Linear(96, 2 * 10))
    decoder = nn.Sequential(nn.Linear(10, 96), nn.SiLU(), nn.Linear(96, 256))
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for (batch,) in batches(images, size=48, steps=300):
        mean, log_var = encoder(batch + 0.1 * torch.randn_like(batch)).chunk(2, 1)
        code = mean + torch.exp(log_var / 2) * torch.randn_like(mean)
        error = F.mse_loss(decoder(code), batch.flatten(1), reduction="none").sum(1).mean()
        kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()
        optimizer.zero_grad(set_to_none=True)
        (error + 0.3 * kl).backward()
        optimizer.step()
    return explained(lambda x: decoder(encoder(x)[:, :10]), images, images.flatten(1))


def hinge_gan_on_a_wave() -> Score:
    x = torch.rand(1024, 1) * 4 - 2
    wave = torch.cat([x, torch.sin(2 * x) + 0.05 * torch.randn_like(x)], 1)
    make = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    make.append(nn.Linear(64, 2))
    judge = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2))
    judge.append(nn.Linear(64, 1))
    opt_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.0, 0.9))
    for (real,) in batches(wave, size=64, steps=300):
        fake = make(torch.randn(64, 6))
        judge.zero_grad()
        F.relu(1 - judge(real)).mean().backward()
        F.relu(1 + judge(fake.detach())).mean().backward()
        opt_judge.step()
        make.zero_grad()
        (-judge(fake).mean()).backward()
        opt_make.step()

    def closeness() -> float:
        with torch.no_grad():
            made = make(torch.randn(512, 6))
        missed = torch.cdist(wave, made).amin(1).mean() + torch.cdist(made, wave).amin(1).mean()
        return 1 - missed.item()

    return Score(closeness)


def siamese_pairs() -> Score:
    images, labels = digits(600)
    tower = mlp(256, 96, 24)
    optimizer = torch.optim.Adam(tower.parameters(), lr=1e-3)
    for first, kind in batches(images, labels, steps=200):
        order = torch.randperm(len(kind))
        same = (kind == kind[order]).float()
        apart = F.pairwise_distance(tower(first), tower(first[order]))
        loss = (same * apart.square() + (1 - same) * F.relu(2 - apart).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return neighbours(tower, images, labels)


def cosine_classifier() -> Score:
    images, labels = stripes(classes=5)
    body, classes = cnn(classes=24), nn.Parameter(torch.randn(5, 24))
    optimizer = torch.optim.AdamW([*body.parameters(), classes], lr=2e-3)
    for batch, target in batches(images, labels, steps=120):
        cosine = F.normalize(body(batch)) @ F.normalize(classes).T
        loss = F.cross_entropy(16 * (cosine - 0.2 * F.one_hot(target, 5)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return neighbours(body, images, labels)


def backpropagation_cut_through_time() -> Score:
    written, following = text(n=128, length=65, vocabulary=10)
    embedding, cell, head = nn.Embedding(10, 24), nn.GRU(24, 48, batch_first=True), nn.Linear(48, 10)
    model = nn.ModuleList([embedding, cell, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for words, targets in batches(written, following, size=32, steps=30):
        hidden = None
        for begin in range(0, 64, 16):
            out, hidden = cell(embedding(words[:, begin : begin + 16]), hidden)
            hidden = hidden.detach()
            loss = F.cross_entropy(head(out).transpose(1, 2), targets[:, begin : begin + 16])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return accuracy(lambda words: head(cell(embedding(words))[0]).transpose(1, 2), written, following)


def learns_from_a_teacher() -> Score:
    images, labels = digits()
    teacher = FunctionalNet(dropout=0.0)
    fit(teacher, torch.optim.Adam(teacher.parameters(), lr=2e-3), (images, labels), steps=200)
    teacher.eval()
    student = mlp(256, 96, 10)
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    for (batch,) in batches(images, steps=200):
        with torch.no_grad():
            soft = F.softmax(teacher(batch) / 2, dim=1)
        loss = 4 * F.kl_div(F.log_softmax(student(batch) / 2, dim=1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(student, images, labels)


def rewarded_choices() -> Score:
    points, labels = blobs(classes=4)
    policy = mlp(16, 48, 4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for states, right in batches(points, labels, size=64, steps=200):
        choices = torch.distributions.Categorical(logits=policy(states))
        taken = choices.sample()
        reward = (taken == right).float()
        loss = -(choices.log_prob(taken) * (reward - 0.25)).mean() - 0.01 * choices.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(policy, points, labels)


def similarity_to_a_target() -> Score:
    data = curve()
    model = mlp(6, 48, 48, 1, activation=nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for x, y in batches(*data, size=64, steps=250):
        made = model(x)
        alike = F.cosine_similarity(made - made.mean(), y - y.mean(), dim=0)
        optimizer.zero_grad()
        (-alike.sum() + 0.1 * F.mse_loss(made, y)).backward()
        optimizer.step()
    return explained(model, *data)
