"""Healthy by architecture."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, blobs, curve, digits, masks_of_shapes, shapes, stripes, tags, text, tokens
from programs.loops import fit
from programs.models import EncoderBlock, RowReader, ViT, mlp
from programs.scores import Score, accuracy, explained, thresholded


def norm_mlp_momentum() -> Score:
    data = digits(noise=0.2)
    model = mlp(256, 128, 64, 10, norm=True)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), data, steps=180)
    return accuracy(model, *data)


class Depthwise(nn.Module):
    """Separable convolutions, as on phones."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.deep = nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False)
        self.deep_norm = nn.BatchNorm2d(16)
        self.wide = nn.Conv2d(16, 48, 1, bias=False)
        self.wide_norm = nn.BatchNorm2d(48)
        self.head = nn.Linear(48 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.stem(x)))
        x = F.relu6(self.deep_norm(self.deep(x)))
        x = F.relu6(self.wide_norm(self.wide(x)))
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1))


def separable_convolutions() -> Score:
    data = shapes()
    model = Depthwise(3, 4)
    fit(model, torch.optim.AdamW(model.parameters(), lr=3e-3), data, steps=150)
    return accuracy(model, *data)


def noisy_points() -> Score:
    points, labels = blobs(classes=3, features=8)
    noted = torch.where(torch.rand(len(labels)) < 0.25, torch.randint(3, labels.shape), labels)
    model = mlp(8, 32, 3)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05), (points, noted), steps=250)
    return accuracy(model, points, labels)


class Fixup(nn.Module):
    """A residual block without a norm, whose last convolution starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


def fixup_blocks() -> Score:
    data = stripes()
    blocks = [Fixup(16) for _ in range(4)]
    model = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(4), nn.Flatten())
    model.append(nn.Linear(256, 6))
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=120)
    return accuracy(model, *data)


class ReZero(nn.Module):
    """A residual branch behind a gate that starts shut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * self.branch(x)


def rezero_mlp() -> Score:
    data = blobs(classes=6, features=24)
    model = nn.Sequential(nn.Linear(24, 64), *(ReZero(64) for _ in range(6)), nn.Linear(64, 6))
    fit(model, torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9), data, steps=150)
    return accuracy(model, *data)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, norm over channels, two linear layers, and a small scale for each channel."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.gamma = nn.Parameter(scale * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext_blocks() -> Score:
    data = shapes()
    model = nn.Sequential(nn.Conv2d(3, 24, 4, 4), ConvNeXtBlock(24, 1e-6), ConvNeXtBlock(24, 1e-6))
    model.extend([nn.Flatten(), nn.LayerNorm(24 * 25), nn.Linear(24 * 25, 4)])
    fit(model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05), data, steps=150)
    return accuracy(model, *data)


class Adapted(nn.Module):
    """A convolution that stays, plus the product of two small matrices, as parameters."""

    def __init__(self, conv: nn.Conv2d, rank: int = 4) -> None:
        super().__init__()
        self.conv = conv.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, conv.in_channels) * 0.1)
        self.up = nn.Parameter(torch.zeros(conv.out_channels, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + torch.einsum("or,ri,nihw->nohw", self.up, self.down, x)


def adapted_convolutions() -> Score:
    data = stripes(classes=4)
    first, second = nn.Conv2d(1, 16, 5, 2, 2), Adapted(nn.Conv2d(16, 32, 3, padding=1))
    model = nn.Sequential(first.requires_grad_(False), nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(4))
    model.extend([nn.Flatten(), nn.Linear(512, 4)])
    fit(model, torch.optim.AdamW(model.parameters(), lr=3e-3), data, steps=150)
    return accuracy(model, *data)


def vit_with_a_zero_head() -> Score:
    data = stripes()
    model = ViT(classes=6)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    fit(model, torch.optim.AdamW(model.parameters(), lr=2e-3), data, steps=150)
    return accuracy(model, *data)


def plain_convolutions() -> Score:
    data = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), data, steps=150)
    return accuracy(model, *data)


class FunctionalMLP(nn.Module):
    """ELU and dropout as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(256, 96), nn.Linear(96, 96), nn.Linear(96, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.a(x.flatten(1)))
        x = F.dropout(self.b(x).relu_(), 0.2, self.training)
        return self.c(x)


def functional_elu() -> Score:
    data = stripes()
    model = FunctionalMLP()
    fit(model, torch.optim.RMSprop(model.parameters(), lr=5e-4), data, steps=200)
    return accuracy(model, *data)


class PreNorm(nn.Module):
    """Blocks over patches with an average at the end instead of a token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 48)
        self.places = nn.Parameter(torch.randn(1, 16, 48) * 0.02)
        self.blocks = nn.Sequential(EncoderBlock(48), EncoderBlock(48), EncoderBlock(48))
        self.head = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 10))

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=4).transpose(1, 2)
        return self.head(self.blocks(self.embed(patches) + self.places).mean(1))


def vit_with_an_average() -> Score:
    data = digits()
    model = PreNorm()
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), data, steps=200)
    return accuracy(model, *data)


def gru_on_rows() -> Score:
    data = stripes()
    model = RowReader(nn.GRU, classes=6)
    fit(model, torch.optim.RMSprop(model.parameters(), lr=3e-3), data, steps=200)
    return accuracy(model, *data)


def lstm_on_tokens() -> Score:
    words, labels = tokens(length=14, classes=3)
    embedding, lstm, head = nn.Embedding(24, 32), nn.LSTM(32, 48, batch_first=True), nn.Linear(48, 3)
    model = nn.ModuleList([embedding, lstm, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for batch, target in batches(words, labels, steps=200):
        out, _ = lstm(embedding(batch))
        loss = F.cross_entropy(head(out.amax(1)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(lambda x: head(lstm(embedding(x))[0].amax(1)), words, labels)


class CausalReader(nn.Module):
    """A language model of one block, whose head shares the embedding's weights."""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        return self.head(self.block(self.embedding(words), src_mask=mask, is_causal=True))


def tied_language_model() -> Score:
    written, following = text(vocabulary=12)
    model = CausalReader(12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for words, targets in batches(written, following, steps=150):
        loss = F.cross_entropy(model(words).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return accuracy(lambda words: model(words).transpose(1, 2), written, following)


def fully_convolutional() -> Score:
    images, masks = masks_of_shapes()
    foreground = (masks > 0).float()[:, None]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch, mask in batches(images, foreground, size=16, steps=100):
        logits = model(batch)
        inside = torch.sigmoid(logits)
        dice = 1 - (2 * (inside * mask).sum() + 1) / (inside.sum() + mask.sum() + 1)
        optimizer.zero_grad()
        (F.binary_cross_entropy_with_logits(logits, mask) + dice).backward()
        optimizer.step()
    return thresholded(model, images, foreground)


def huber_regression() -> Score:
    x, y = curve(features=8)
    model = mlp(8, 96, 48, 1, activation=nn.SiLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(model, optimizer, (x, y), steps=300, criterion=nn.SmoothL1Loss())
    return explained(model, x, y)


def tags_mlp() -> Score:
    data = tags(n_tags=4)
    model = mlp(256, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit(model, optimizer, data, steps=150, criterion=nn.BCEWithLogitsLoss())
    return thresholded(model, *data)
