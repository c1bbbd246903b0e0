"""Trains the sample networks on the drawn data set and measures them on pictures they have never seen."""

import random
import time

import torch
from dataset import CLASSES, SIZE, Shapes, render
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torchvision import transforms

SEED = 2024
"""Of weights and training pictures; the held-out pictures come from `HELD_OUT_SEED`."""
HELD_OUT_SEED = SEED + 1
HELD_OUT = 1000
SEEDS_APART = 1_000_003
"""The pictures of a set have consecutive seeds, so sets start far from each other, as in `Shapes`."""

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)

as_drawn = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])
"""A PIL picture as a normalised tensor (3, H, W), at its own size."""

as_modelscope = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), as_drawn])
"""The default preprocessing of modelscope, which is the one of ImageNet: a tensor (3, 224, 224)."""


def train(model: nn.Module, steps: int, sizes: tuple[int, ...], peak_rate: float, seed: int = SEED) -> None:
    """Train in place with one cycle of the learning rate. Every step draws new pictures, none comes twice.

    The side of the pictures, in pixels, changes from step to step among ``sizes``, so that the network
    knows a shape at the size of the data set as well as at the 224 pixels of the default preprocessing.
    """
    choice = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=steps, pct_start=0.2)
    started, drawn, hits, seen = time.perf_counter(), 0, 0, 0
    model.train()
    for step in range(steps):
        size = choice.choice(sizes)
        count = max(24, min(96, round(64 * (SIZE / size) ** 2)))  # about the same work in every step
        labels = torch.tensor([choice.randrange(len(CLASSES)) for _ in range(count)])
        scores = model(normalise(training_batch(labels, seed * SEEDS_APART + drawn, size, choice)))
        drawn += count
        loss = functional.cross_entropy(scores, labels, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

        hits, seen = hits + int((scores.argmax(1) == labels).sum()), seen + count
        if (step + 1) % 50 == 0:
            spent = time.perf_counter() - started
            print(f"  step {step + 1:4d}/{steps}  loss {loss:.3f}  right {hits / seen:6.1%}  {spent:4.0f} s")
            hits = seen = 0
    model.eval()


def training_batch(labels: Tensor, first_seed: int, size: int, choice: random.Random) -> Tensor:
    """One picture per label (N,), as a tensor (N, 3, size, size) with values from 0 to 1.

    Large pictures are cropped as modelscope does it, and every other batch of them is enlarged from the size
    of the data set: that is how the network meets blurred edges and soft noise.
    """
    large = size > 1.5 * SIZE
    drawn_size = choice.choice((SIZE, size)) if large else size
    pictures = torch.stack(
        [render(label, first_seed + offset, drawn_size) for offset, label in enumerate(labels.tolist())]
    )
    if not large:
        return pictures
    enlarged = functional.interpolate(pictures, size=round(size * 256 / 224), mode="bilinear")
    return transforms.functional.center_crop(enlarged, [size, size])


def normalise(pictures: Tensor) -> Tensor:
    """Pictures (N, 3, H, W) with values from 0 to 1, shifted and scaled as ImageNet models expect them."""
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
    return (pictures - mean) / deviation


@torch.no_grad()
def accuracy(model: nn.Module, size: int, transform: transforms.Compose, batch: int = 50) -> float:
    """Share of the held-out pictures, drawn at ``size`` pixels, which the model classifies correctly."""
    held_out = Shapes(HELD_OUT, seed=HELD_OUT_SEED, size=size, transform=transform)
    loader = torch.utils.data.DataLoader(held_out, batch_size=batch)
    return sum(int((model(inputs).argmax(1) == labels).sum()) for inputs, labels in loader) / HELD_OUT


def insert_norms(model: nn.Module) -> None:
    """Put a batch norm behind every convolution, in place.

    SqueezeNet was designed without, and learns slowly from scratch. `fold_norms` takes them out again.
    """
    for parent, name, layer in _children(model):
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            setattr(parent, name, nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels)))


def fold_norms(model: nn.Module) -> None:
    """Undo `insert_norms`: in evaluation a batch norm only scales and shifts, as its convolution can."""
    for parent, name, layer in _children(model):
        if isinstance(layer, nn.Sequential) and [type(part) for part in layer] == [nn.Conv2d, nn.BatchNorm2d]:
            setattr(parent, name, fuse_conv_bn_eval(*layer.eval()))


def _children(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Parent, name and child for every module; a list, so that children can be replaced meanwhile."""
    return [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]
