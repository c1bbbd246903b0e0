"""Sick: who holds a parameter, who clears a gradient, who steps, which mode."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, blobs, curve, digits, shapes, stripes, tags
from programs.loops import fit
from programs.models import FunctionalNet, ResNet, RowReader, ViT, cnn, mlp
from programs.scores import Score, accuracy, explained, thresholded


def cnn_without_step() -> Score:
    data = digits()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in batches(*data, steps=60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
    return accuracy(model, *data)


def scheduler_steps_alone() -> Score:
    data = curve()
    model = mlp(6, 64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
    for x, y in batches(*data, steps=100):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        scheduler.step()
    return explained(model, *data)


def mlp_without_zero_grad() -> Score:
    data = blobs()
    model = mlp(16, 64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(*data):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def vit_without_zero_grad() -> Score:
    data = stripes()
    model = ViT(classes=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for images, labels in batches(*data):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def clears_before_it_steps() -> Score:
    data = digits()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in batches(*data, steps=80):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
    return accuracy(model, *data)


def clears_to_zero_before_it_steps() -> Score:
    data = tags()
    model = cnn(classes=5, norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for images, flags in batches(*data, steps=80):
        loss = F.binary_cross_entropy_with_logits(model(images), flags)
        loss.backward()
        model.zero_grad(set_to_none=False)
        optimizer.step()
    return thresholded(model, *data)


def optimizer_of_the_first_try() -> Score:
    data = digits()
    model = cnn(width=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model = cnn(width=16)
    fit(model, optimizer, data, steps=80)
    return accuracy(model, *data)


def decoder_left_out() -> Score:
    images, _ = stripes()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 16))
    decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 256))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    for (batch,) in batches(images, steps=150):
        optimizer.zero_grad()
        loss = F.mse_loss(decoder(encoder(batch)), batch.flatten(1))
        loss.backward()
        optimizer.step()
    return explained(lambda x: decoder(encoder(x)), images, images.flatten(1))


def head_only_of_a_resnet() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.001, momentum=0.9)
    fit(model, optimizer, data, steps=100)
    return accuracy(model, *data)


def last_layer_only() -> Score:
    data = digits()
    model = FunctionalNet()
    optimizer = torch.optim.Adam(model.fc2.parameters(), lr=1e-3)
    fit(model, optimizer, data, steps=150)
    return accuracy(model, *data)


def head_replaced() -> Score:
    data = stripes()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model[-1] = nn.Linear(model[-1].in_features, 6)
    fit(model, optimizer, data)
    return accuracy(model, *data)


def vit_head_replaced() -> Score:
    data = shapes()
    model = ViT(3, 1000, size=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.head = nn.Linear(32, 4)
    fit(model, optimizer, data)
    return accuracy(model, *data)


class TwoBranches(nn.Module):
    """Looks at an image by two branches, one of which is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.coarse = nn.Sequential(nn.Conv2d(1, 12, 5, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.head = nn.Linear(24 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        fine, coarse = self.fine(x), self.coarse(x)
        return self.head(torch.cat([fine, coarse.detach()], 1).flatten(1))


def one_of_two_branches_detached() -> Score:
    data = digits()
    model = TwoBranches()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fit(model, optimizer, data)
    return accuracy(model, *data)


def features_by_data() -> Score:
    data = blobs()
    body, head = mlp(16, 64, 32), nn.Linear(32, 5)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, y in batches(*data):
        features = torch.tanh(body(x)).data
        loss = F.cross_entropy(head(features), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(lambda points: head(torch.tanh(body(points))), *data)


def features_under_no_grad() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in batches(*data):
        with torch.no_grad():
            features = model.blocks(model.stem(images))
        logits = model.fc(F.adaptive_avg_pool2d(features, 4).flatten(1))
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def encoder_under_no_grad() -> Score:
    data = digits()
    reader = RowReader(nn.GRU)
    optimizer = torch.optim.Adam(reader.parameters(), lr=3e-3)
    for images, labels in batches(*data):
        with torch.no_grad():
            out, _ = reader.rnn(images.squeeze(1))
        loss = F.cross_entropy(reader.head(out[:, -1]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(reader, *data)


class ForgetsItsNorm(nn.Module):
    """A layer of it is made and never called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, 2, 1), nn.Conv2d(12, 24, 3, 2, 1)
        self.conv3 = nn.Conv2d(24, 24, 3, padding=1)
        self.fc = nn.Linear(24 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.flatten(1))


def forgotten_layer() -> Score:
    data = digits()
    model = ForgetsItsNorm()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fit(model, optimizer, data)
    return accuracy(model, *data)


def auxiliary_head_left_out() -> Score:
    data = shapes()
    model = nn.ModuleDict({"body": cnn(3, 32), "main": nn.Linear(32, 4), "auxiliary": nn.Linear(32, 4)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for images, labels in batches(*data):
        features = F.relu(model["body"](images))
        optimizer.zero_grad()
        F.cross_entropy(model["main"](features), labels).backward()
        optimizer.step()
    return accuracy(lambda x: model["main"](F.relu(model["body"](x))), *data)


def all_but_the_norms_frozen() -> Score:
    data = digits()
    model = cnn()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name in {"1.weight", "1.bias", "5.weight", "5.bias"}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    fit(model, optimizer, data)
    return accuracy(model, *data)


def frozen_with_the_new_head() -> Score:
    data = stripes()
    model = ViT()
    model.head = nn.Linear(32, 6)
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.norm.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(model, optimizer, data, steps=100)
    return accuracy(model, *data)


def eval_left_on() -> Score:
    images, labels = digits(1280)
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(4):
        for batch, target in batches(images[:1024], labels[:1024], steps=32):
            optimizer.zero_grad()
            F.cross_entropy(model(batch), target).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(images[1024:]).argmax(1) == labels[1024:]).float().mean()
        print(f"epoch {epoch}: {right:.3f}")
    return accuracy(model, images, labels)


def dropout_that_never_drops() -> Score:
    data = shapes()
    model = FunctionalNet(3, 4, dropout=0.5)
    model.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in batches(*data, steps=100):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return accuracy(model, *data)


def loads_the_start_each_step() -> Score:
    data = blobs()
    model = mlp(16, 32, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start = {name: value.clone() for name, value in model[3].state_dict().items()}
    for x, y in batches(*data):
        model[3].load_state_dict(start)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return accuracy(model, *data)


def loads_the_start_each_epoch() -> Score:
    data = blobs()
    model = mlp(16, 32, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for step, (x, y) in enumerate(batches(*data)):
        if step % 10 == 0:
            model.load_state_dict(start)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return accuracy(model, *data)


def clears_before_each_part() -> Score:
    data = blobs()
    model = mlp(16, 64, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for part, (x, y) in enumerate(batches(*data, size=8, steps=480)):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) / 8).backward()
        if part % 8 == 7:
            optimizer.step()
    return accuracy(model, *data)


def warm_up_by_epoch() -> Score:
    data = stripes()
    model = ViT(classes=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 60, 1.0))
    for step, (images, labels) in enumerate(batches(*data, steps=160)):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step % 24 == 23:
            schedule.step()
    return accuracy(model, *data)


class Stack(nn.Module):
    """Layers one after the other, in a list that may be torch's or Python's."""

    def __init__(self, layers: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = layers, head

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def residual_blocks_in_a_list() -> Score:
    data = blobs()
    model = Stack([mlp(16, 32, 16), mlp(16, 32, 16)], nn.Linear(16, 5))
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data)
    return accuracy(model, *data)


class Signs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sign()


def binary_units() -> Score:
    data = blobs()
    model = nn.Sequential(nn.Linear(16, 48), Signs(), nn.Linear(48, 5))
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), data)
    return accuracy(model, *data)


def softmax_of_one_score() -> Score:
    data = curve()
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softmax(1))
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, criterion=nn.MSELoss())
    return explained(model, *data)


class Mixer(nn.Module):
    """Attention over four parts of a row; softmax over the samples where `dim` is 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.head, self.dim = nn.Linear(4, 12), nn.Linear(16, 5), dim

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.view(-1, 4, 4)).chunk(3, -1)
        return self.head(((q @ k.transpose(1, 2)).softmax(self.dim) @ v).flatten(1))


def softmax_over_the_samples() -> Score:
    data = blobs()
    model = Mixer(dim=0)
    fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), data)
    return accuracy(model, *data)


def cosine_by_epoch() -> Score:
    data = blobs()
    model = mlp(16, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
    for step, (x, y) in enumerate(batches(*data)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 32 == 31:
            schedule.step()
    return accuracy(model, *data)
