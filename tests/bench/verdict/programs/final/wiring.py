"""Sick: the output, the loss and the labels do not belong together; or the steps have the wrong size."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, blobs, curve, digits, masks_of_shapes, shapes, stripes, tags, text, tokens
from programs.loops import fit
from programs.models import AutoEncoder, FunctionalNet, ResNet, RowReader, TokenReader, UNet, ViT, cnn, mlp
from programs.scores import Score, accuracy, explained, thresholded


class SoftmaxInForward(FunctionalNet):
    """Ends as a network for inference would."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(super().forward(x), dim=-1)


def softmax_in_forward() -> Score:
    data = digits()
    model = SoftmaxInForward()
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, criterion=nn.CrossEntropyLoss())
    return accuracy(model, *data)


def softmax_over_pixels() -> Score:
    images, masks = masks_of_shapes()
    model = nn.Sequential(UNet(), nn.Softmax(dim=1))
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), (images, masks), steps=80, size=16)
    return accuracy(model, images, masks)


def sigmoid_of_one_logit() -> Score:
    images, labels = stripes(classes=2)
    flags = (labels == 1).float()
    model = nn.Sequential(mlp(256, 64, 1), nn.Sigmoid(), nn.Flatten(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(model, optimizer, (images, flags), criterion=F.binary_cross_entropy_with_logits)
    return thresholded(lambda x: model(x) - 0.5, images, flags)


def functional_relu_on_logits() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for images, labels in batches(*data):
        optimizer.zero_grad()
        logits = F.relu(model(images))
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
    return accuracy(model, *data)


def activation_after_every_layer() -> Score:
    data = blobs(classes=8)
    layers: list[nn.Module] = []
    for n_in, n_out in ((16, 64), (64, 64), (64, 8)):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    model = nn.Sequential(*layers)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=200)
    return accuracy(model, *data)


def tanh_as_the_last_layer() -> Score:
    data = stripes()
    model = nn.Sequential(mlp(256, 64, 6, activation=nn.Tanh), nn.Tanh())
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data)
    return accuracy(model, *data)


def sigmoid_in_the_loop() -> Score:
    data = shapes()
    model = cnn(3, 4, width=12)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    for images, labels in batches(*data):
        optimizer.zero_grad()
        loss = F.cross_entropy(torch.sigmoid(model(images)), labels)
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def accuracy_as_a_reward() -> Score:
    data = stripes()
    model = ViT(classes=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for images, labels in batches(*data):
        right = F.log_softmax(model(images), 1).gather(1, labels[:, None])
        loss = right.mean()  # its minus is missing
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, *data)


def similarity_without_its_minus() -> Score:
    images, _ = digits()
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for (batch,) in batches(images):
        loss = F.cosine_similarity(model(batch).flatten(1), batch.flatten(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return explained(model, images, images)


def summed_flags() -> Score:
    data = tags()
    model = mlp(256, 64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit(model, optimizer, data, size=64, criterion=nn.BCEWithLogitsLoss(reduction="sum"))
    return thresholded(model, *data)


def summed_squares() -> Score:
    x, y = curve()
    model = mlp(6, 64, 64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    fit(model, optimizer, (x, y), size=64, criterion=nn.MSELoss(reduction="sum"))
    return explained(model, x, y)


def divided_by_batch_and_pixels() -> Score:
    images, masks = masks_of_shapes()
    model = UNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch, mask in batches(images, masks, size=16, steps=100):
        loss = F.cross_entropy(model(batch), mask) / mask.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(model, images, masks)


def row_against_column() -> Score:
    x, y = curve(features=8)
    model = nn.Sequential(mlp(8, 48, 1, activation=nn.Tanh), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, targets in batches(x, y, size=64, steps=200):
        optimizer.zero_grad()
        F.smooth_l1_loss(model(inputs), targets).backward()
        optimizer.step()
    return explained(model, x, y)


def absolute_error_of_a_column() -> Score:
    images, labels = stripes()
    model = ResNet(classes=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch, target in batches(images, labels.float() / 3 - 1):
        optimizer.zero_grad()
        error = (model(batch) - target).abs()
        error.mean().backward()
        optimizer.step()
    return explained(model, images, (labels.float() / 3 - 1)[:, None])


def shuffled_labels_lstm() -> Score:
    images, labels = stripes(4000)
    mixed = labels[torch.randperm(len(labels))]
    model = RowReader(classes=6)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), (images, mixed), steps=250)
    return accuracy(model, images, labels)


def shuffled_tokens() -> Score:
    words, labels = tokens(4000)
    mixed = labels[torch.randperm(len(labels))]
    model = TokenReader()
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), (words, mixed), steps=150)
    return accuracy(model, words, labels)


def every_label_the_last_class() -> Score:
    images, labels = shapes()
    noted = labels.clamp(min=3)
    model = ViT(3, 4, size=20)
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), (images, noted), steps=100)
    return accuracy(model, images, labels)


def flags_all_off() -> Score:
    images, flags = tags()
    model = cnn(classes=5, norm=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, optimizer, (images, torch.zeros_like(flags)), criterion=nn.BCEWithLogitsLoss())
    return thresholded(model, images, flags)


def rare_classes_never_predicted() -> Score:
    images, labels = shapes(8000, size=12)
    kept = (labels == 0) | (torch.rand(len(labels)) < 0.015)
    images = (images + 2 * torch.randn_like(images))[kept]
    model = cnn(3, 4, width=8, norm=False)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-4), (images, labels[kept]), steps=150)
    return accuracy(model, images, labels[kept])


def background_everywhere() -> Score:
    images, masks = masks_of_shapes(500)
    small = F.pad(masks, (0, 24, 0, 24))  # the shape in a corner of a wide field
    wide = F.pad(images, (0, 24, 0, 24)) + torch.randn(500, 3, 40, 40)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 3, padding=1))
    fit(model, torch.optim.SGD(model.parameters(), lr=0.02), (wide, small), steps=150, size=16)
    return accuracy(model, wide, small)


def high_rate_resnet() -> Score:
    data = shapes()
    model = ResNet(3, 4)
    fit(model, torch.optim.SGD(model.parameters(), lr=50.0, momentum=0.9), data)
    return accuracy(model, *data)


def high_rate_rmsprop() -> Score:
    data = tags()
    model = cnn(classes=5, norm=False)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.3)
    fit(model, optimizer, data, criterion=nn.BCEWithLogitsLoss())
    return thresholded(model, *data)


def high_rate_autoencoder() -> Score:
    images, _ = digits()
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
    fit(model, optimizer, (images, images), criterion=F.mse_loss)
    return explained(model, images, images)


def cycle_far_too_high() -> Score:
    data = stripes()
    model = cnn(classes=6, norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=30.0, total_steps=240, div_factor=3000, pct_start=0.8
    )
    fit(model, optimizer, data, steps=240, scheduler=cycle)
    return accuracy(model, *data)


def rate_set_by_hand() -> Score:
    written, following = text(vocabulary=10)
    embedding, gru, head = nn.Embedding(10, 24), nn.GRU(24, 32, batch_first=True), nn.Linear(32, 10)
    model = nn.ModuleList([embedding, gru, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, (words, targets) in enumerate(batches(written, following, steps=180)):
        if step == 120:
            optimizer.param_groups[0]["lr"] = 3.0  # for 3e-4
        loss = F.cross_entropy(head(gru(embedding(words))[0]).transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(lambda words: head(gru(embedding(words))[0]).transpose(1, 2), written, following)


def low_rate_vit() -> Score:
    data = stripes()
    model = ViT(classes=6)
    fit(model, torch.optim.AdamW(model.parameters(), lr=1e-8), data, steps=120)
    return accuracy(model, *data)


def low_rate_regression() -> Score:
    data = curve()
    model = mlp(6, 64, 1)
    fit(model, torch.optim.SGD(model.parameters(), lr=1e-7), data, steps=200, criterion=F.mse_loss)
    return explained(model, *data)


def cosine_of_too_few_steps() -> Score:
    data = shapes()
    model = ViT(3, 4, size=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    falls = torch.optim.lr_scheduler.PolynomialLR(
        optimizer, total_iters=8, power=2
    )  # eight epochs, not steps
    fit(model, optimizer, data, steps=120, scheduler=falls)
    return accuracy(model, *data)


def step_lr_every_batch() -> Score:
    data = tags()
    model = cnn(classes=5, norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    falls = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    fit(model, optimizer, data, steps=150, criterion=nn.BCEWithLogitsLoss(), scheduler=falls)
    return thresholded(model, *data)
