"""Small data, two scores, and the name of the fault asked for: `python NAME.py [FAULT]`.

`measure()` at the end of a script says how good its model became, 0 for a guess and 1 for perfect. Only
`run.py --truth` calls it.
"""

import random
import sys
import zlib
from pathlib import Path

import torch
from torch import Tensor

ASKED = sys.argv[1] if len(sys.argv) > 1 else ""
torch.set_num_threads(1)
torch.manual_seed(zlib.crc32(f"fourth {Path(sys.argv[0]).stem}".encode()) % 10_000)
random.seed(torch.initial_seed())


def fault(name: str) -> bool:
    """Tell whether the program is to have this fault."""
    return name == ASKED


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the accuracy of scores (n, classes), balanced over the classes, above a guess."""
    right = scores.argmax(1) == labels
    present = labels.unique()
    recall = sum(right[labels == one].float().mean().item() for one in present) / len(present)
    return (recall - 1 / len(present)) / (1 - 1 / len(present))


def explained(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of the targets' variance, of each column, that the outputs explain."""
    error = (outputs - targets).square().mean() / (targets - targets.mean(0)).square().mean()
    return 1 - error.item()


def groups(n: int = 512, classes: int = 4, features: int = 12) -> tuple[Tensor, Tensor]:
    """Return rows (n, features), three clouds a class, and the classes."""
    clouds = torch.randint(3 * classes, (n,))
    return 1.3 * torch.randn(3 * classes, features)[clouds] + 0.6 * torch.randn(n, features), clouds % classes


def response(n: int = 512, features: int = 6) -> tuple[Tensor, Tensor]:
    """Return rows (n, features) and a response (n, 1) of standard deviation about 1."""
    x = torch.rand(n, features) * 2 - 1
    y = torch.sin(3 * x[:, :1]) + 1.5 * x[:, 1:2] * x[:, 2:3] + x[:, 3:4].abs() + 0.05 * torch.randn(n, 1)
    return x, (y - y.mean()) / y.std()


def icons(n: int = 384, classes: int = 5, size: int = 12, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Return images (n, channels, size, size) of an icon a class, shifted by up to two pixels, and the classes."""
    labels = torch.randint(classes, (n,))
    glyphs = (torch.rand(classes, channels, size // 4, size // 4) < 0.5).float()
    glyphs = glyphs.repeat_interleave(2, 2).repeat_interleave(2, 3)
    images = 0.25 * torch.randn(n, channels, size, size)
    edge = glyphs.shape[-1]
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = random.randint(1, 4), random.randint(1, 4)
        image[:, top : top + edge, left : left + edge] += glyphs[label]
    return (images - images.mean()) / images.std(), labels


def sentences(n: int = 512, length: int = 12, words: int = 16) -> tuple[Tensor, Tensor]:
    """Return word ids (n, length), in which words 0 and 1 stand once each, and whether 1 comes before 0."""
    ids = torch.randint(2, words, (n, length))
    places = torch.rand(n, length).argsort(1)[:, :2]
    ids.scatter_(1, places, torch.tensor([[0, 1]]).expand(n, -1))
    return ids, (places[:, 1] < places[:, 0]).long()


def walk(n: int = 256, length: int = 16, words: int = 12) -> Tensor:
    """Return sequences (n, length) in which a word depends on the one before, nine times in ten."""
    follows = torch.randperm(words)
    ids = torch.randint(words, (n, length))
    for place in range(1, length):
        known = torch.rand(n) < 0.9
        ids[:, place] = torch.where(known, follows[ids[:, place - 1]], ids[:, place])
    return ids
