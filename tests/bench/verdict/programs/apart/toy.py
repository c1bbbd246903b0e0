"""Small data that can be learnt, and the name of the fault asked for: `python NAME.py [FAULT]`."""

import random
import sys
import zlib
from pathlib import Path

import torch
from torch import Tensor

ASKED = sys.argv[1] if len(sys.argv) > 1 else ""
torch.set_num_threads(1)
torch.manual_seed(zlib.crc32(Path(sys.argv[0]).stem.encode()) % 10_000)
random.seed(torch.initial_seed())


def fault(name: str) -> bool:
    """Tell whether the program is to have this fault."""
    return name == ASKED


def clusters(n: int = 512, classes: int = 6, features: int = 20, noise: float = 0.7) -> tuple[Tensor, Tensor]:
    """Return points (n, features) around one centre a class, and the classes."""
    labels = torch.randint(classes, (n,))
    return torch.randn(classes, features)[labels] + noise * torch.randn(n, features), labels


def pictures(n: int = 384, classes: int = 5, size: int = 12, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Return noisy images (n, channels, size, size) of blurred random patterns, one a class, and the classes."""
    labels = torch.randint(classes, (n,))
    patterns = torch.nn.functional.avg_pool2d(torch.randn(classes, channels, size + 2, size + 2), 3, 1)
    patterns = patterns / patterns.std()
    return patterns[labels] + 0.5 * torch.randn(n, channels, size, size), labels


def corpus(n: int = 3000, vocabulary: int = 14, sure: float = 0.85) -> Tensor:
    """Return a text of n tokens: mostly a fixed successor follows each."""
    successor = torch.randperm(vocabulary).tolist()
    written = [0]
    for _ in range(n - 1):
        known = random.random() < sure
        written.append(successor[written[-1]] if known else random.randrange(vocabulary))
    return torch.tensor(written)


def waves(n: int = 256, length: int = 24) -> Tensor:
    """Return sines (n, length) of their own frequency and phase."""
    time = torch.arange(length)
    return torch.sin(time * (0.15 + 0.4 * torch.rand(n, 1)) + 6.3 * torch.rand(n, 1)) + 0.05 * torch.randn(
        n, length
    )


def surface(n: int = 512, features: int = 5) -> tuple[Tensor, Tensor]:
    """Return points (n, features) and a smooth function (n, 1) of them."""
    x = torch.randn(n, features)
    return x, (torch.sin(1.5 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.1 * torch.randn(n, 1))


def two_moons(n: int = 512) -> Tensor:
    """Return points (n, 2) on two half circles."""
    angle = torch.rand(n) * torch.pi
    side = (torch.rand(n) < 0.5).float() * 2 - 1
    x = torch.stack([angle.cos() * side + 0.5 * side, angle.sin() * side - 0.25 * side], 1)
    return x + 0.07 * torch.randn(n, 2)
