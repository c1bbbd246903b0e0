"""Small models of every sort, as they stand in tutorials and repositories."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """Return Flatten and a linear layer between each two sizes; the last has no activation."""
    layers: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(n_in, n_out), *([nn.BatchNorm1d(n_out)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def cnn(
    channels: int = 1,
    classes: int = 10,
    width: int = 16,
    norm: bool = True,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in ((channels, width), (width, 2 * width)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), *([nn.BatchNorm2d(n_out)] if norm else [])]
        layers += [activation(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * width, classes))


class FunctionalNet(nn.Module):
    """The network of torch's own MNIST example, smaller: nothing between the layers is a module."""

    def __init__(self, channels: int = 1, classes: int = 10, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.fc1 = nn.Linear(24 * 16, 64)
        self.fc2 = nn.Linear(64, classes)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.adaptive_avg_pool2d(torch.relu(self.conv2(x)), 4)
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), self.dropout, self.training)
        return self.fc2(x)


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    """A stem, some blocks and a head."""

    def __init__(self, channels: int = 1, classes: int = 10, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.fc = nn.Linear(width * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 4).flatten(1))


class EncoderBlock(nn.Module):
    """Attention and a small network, each behind a norm; with a LayerScale where `scale` is given."""

    def __init__(self, width: int, heads: int = 4, scale: float | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.heads = heads
        self.gamma1 = nn.Parameter(torch.full((width,), scale)) if scale is not None else None
        self.gamma2 = nn.Parameter(torch.full((width,), scale)) if scale is not None else None

    def attend(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        qkv = self.qkv(x).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*qkv)
        return self.proj(mixed.transpose(1, 2).reshape(n, length, width))

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attend(self.norm1(x))
        x = x + (attended if self.gamma1 is None else self.gamma1 * attended)
        made = self.mlp(self.norm2(x))
        return x + (made if self.gamma2 is None else self.gamma2 * made)


class ViT(nn.Module):
    """A vision transformer with a class token."""

    def __init__(
        self,
        channels: int = 1,
        classes: int = 10,
        size: int = 16,
        width: int = 32,
        depth: int = 2,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // 4) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, scale=scale) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class RowReader(nn.Module):
    """Reads an image row by row."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, size: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.rnn = kind(size, 48, batch_first=True)
        self.head = nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x.squeeze(1))
        return self.head(out[:, -1])


class TokenReader(nn.Module):
    """Embeds tokens, mixes them by a transformer's layer of torch's own, and averages."""

    def __init__(self, vocabulary: int = 24, classes: int = 4, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1))


class UNet(nn.Module):
    """Down and up once, with a shortcut across."""

    def __init__(self, channels: int = 3, classes: int = 5, width: int = 12) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.bottom = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Conv2d(2 * width, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        left = self.down(x)
        right = self.up(self.bottom(F.max_pool2d(left, 2)))
        return self.out(torch.cat([left, right], 1))


class AutoEncoder(nn.Module):
    """Through a narrow middle, and back to the image."""

    def __init__(self, n_in: int = 256, middle: int = 16, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(n_in, 96), activation(), nn.Linear(96, middle))
        self.decoder = nn.Sequential(nn.Linear(middle, 96), activation(), nn.Linear(96, n_in))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x)).reshape(x.shape)
