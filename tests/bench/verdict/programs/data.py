"""Small data that can be learnt, drawn from torch's own generator: nothing is downloaded."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

_FONT = {  # 5 wide, 7 high; a row is five bits
    0: (14, 17, 19, 21, 25, 17, 14),
    1: (4, 12, 4, 4, 4, 4, 14),
    2: (14, 17, 1, 2, 4, 8, 31),
    3: (31, 2, 4, 2, 1, 17, 14),
    4: (2, 6, 10, 18, 31, 2, 2),
    5: (31, 16, 30, 1, 1, 17, 14),
    6: (6, 8, 16, 30, 17, 17, 14),
    7: (31, 1, 2, 4, 8, 8, 8),
    8: (14, 17, 17, 14, 17, 17, 14),
    9: (14, 17, 17, 15, 1, 2, 12),
}


def batches(*tensors: Tensor, size: int = 32, steps: int = 120):
    """Yield `steps` shuffled batches, epoch after epoch."""
    loader = DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=True, drop_last=True)
    done = 0
    while True:
        for batch in loader:
            if done == steps:
                return
            yield batch
            done += 1


def digits(n: int = 1024, size: int = 16, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return images (n, 1, size, size) with mean about 0 and standard deviation about 1, and labels 0..9."""
    glyphs = torch.tensor([[[row >> 4 - bit & 1 for bit in range(5)] for row in _FONT[k]] for k in _FONT])
    factor = size // 8
    glyphs = glyphs.float().repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    _, height, width = glyphs.shape
    labels = torch.randint(10, (n,))
    images = torch.zeros(n, 1, size, size)
    tops, lefts = torch.randint(size - height + 1, (n,)), torch.randint(size - width + 1, (n,))
    for image, label, top, left in zip(images, labels.tolist(), tops.tolist(), lefts.tolist(), strict=True):
        image[0, top : top + height, left : left + width] = glyphs[label]
    images = images * (0.6 + 0.4 * torch.rand(n, 1, 1, 1)) + noise * torch.randn_like(images)
    return (images - images.mean()) / images.std(), labels


def shapes(n: int = 768, size: int = 20) -> tuple[Tensor, Tensor]:
    """Return coloured images (n, 3, size, size) of a disc, a square, a cross or a ring, and labels 0..3."""
    labels = torch.randint(4, (n,))
    masks = _masks(labels, size)
    colours = 0.4 + 0.6 * torch.rand(n, 3, 1, 1)
    images = masks[:, None] * colours + 0.1 * torch.randn(n, 3, size, size)
    return (images - images.mean()) / images.std(), labels


def masks_of_shapes(n: int = 384, size: int = 16) -> tuple[Tensor, Tensor]:
    """Return images (n, 3, size, size) and, per pixel, 0 for the ground or 1..4 for the shape on it."""
    labels = torch.randint(4, (n,))
    masks = _masks(labels, size)
    tints = torch.eye(4, 3)[labels] + 0.3
    images = masks[:, None] * tints[:, :, None, None] + 0.2 * torch.randn(n, 3, size, size)
    return (images - images.mean()) / images.std(), (masks * (labels + 1)[:, None, None]).long()


def _masks(labels: Tensor, size: int) -> Tensor:
    n = len(labels)
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centre = size * (0.35 + 0.3 * torch.rand(n, 2, 1, 1))
    radius = size * (0.2 + 0.1 * torch.rand(n, 1, 1))
    down, across = (row - centre[:, 0]).abs(), (column - centre[:, 1]).abs()
    distance = (down**2 + across**2).sqrt()
    disc = distance < radius
    square = torch.maximum(down, across) < radius
    cross = square & (torch.minimum(down, across) < radius / 3)
    ring = disc & (distance > radius * 0.6)
    every = torch.stack([disc, square, cross, ring])
    return every[labels, torch.arange(n)].float()


def stripes(n: int = 768, classes: int = 6, size: int = 16) -> tuple[Tensor, Tensor]:
    """Return gratings (n, 1, size, size) and as labels the direction of their stripes."""
    labels = torch.randint(classes, (n,))
    angle = labels * torch.pi / classes
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    along = angle.cos()[:, None, None] * row + angle.sin()[:, None, None] * column
    waves = torch.sin(along * (0.8 + 0.4 * torch.rand(n, 1, 1)) + 6.3 * torch.rand(n, 1, 1))
    return (waves + 0.3 * torch.randn(n, size, size))[:, None], labels


def blobs(n: int = 1024, classes: int = 5, features: int = 16) -> tuple[Tensor, Tensor]:
    """Return points (n, features) around one centre a class."""
    labels = torch.randint(classes, (n,))
    return (torch.randn(classes, features)[labels] + 0.6 * torch.randn(n, features)), labels


def curve(n: int = 1024, features: int = 6) -> tuple[Tensor, Tensor]:
    """Return points (n, features) and a smooth function (n, 1) of them."""
    x = torch.randn(n, features)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] + 0.1 * torch.randn(n)
    return x, y[:, None]


def tags(n: int = 768, n_tags: int = 5, size: int = 16) -> tuple[Tensor, Tensor]:
    """Return images (n, 1, size, size) and flags (n, n_tags): which bars are drawn into it."""
    flags = (torch.rand(n, n_tags) < 0.4).float()
    bars = torch.zeros(n_tags, size, size)
    for k in range(n_tags):
        first = 1 + k * 3
        if k % 2:
            bars[k, first : first + 2, :] = 1
        else:
            bars[k, :, first : first + 2] = 1
    images = torch.einsum("nk,khw->nhw", flags, bars) + 0.3 * torch.randn(n, size, size)
    return ((images - images.mean()) / images.std())[:, None], flags


def tokens(n: int = 1024, length: int = 20, vocabulary: int = 24, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Return sequences (n, length) of token ids; the class is which of the first tokens stands in it, thrice."""
    labels = torch.randint(classes, (n,))
    sequences = torch.randint(classes, vocabulary, (n, length))
    places = torch.rand(n, length).argsort(1)[:, :3]
    return sequences.scatter(1, places, labels[:, None].expand(-1, 3)), labels


def text(n: int = 512, length: int = 17, vocabulary: int = 16) -> tuple[Tensor, Tensor]:
    """Return sequences (n, length - 1) and what follows each token: nine times in ten a fixed successor."""
    successor = torch.randperm(vocabulary)
    written = torch.randint(vocabulary, (n, length))
    for place in range(1, length):
        follows = torch.rand(n) < 0.9
        written[:, place] = torch.where(follows, successor[written[:, place - 1]], written[:, place])
    return written[:, :-1], written[:, 1:]
