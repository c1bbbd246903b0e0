"""Train the networks of `nets.py` on drawn images, and keep their weights at step 0, at step 10 and at the end."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import nets  # noqa: E402

from modelscope_cli.training.data import render  # noqa: E402

STEPS, BATCH, IMAGES, HELD_OUT = 600, 48, 3000, 200
MOMENTS = ("0", "10", "end")
WITH_IMAGES = ("autoencoder", "unet")  # their answer is an image, not scores of classes


def draw(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return `n` images (N, 3, 48, 48), normalised to mean 0 and standard deviation 1, and their classes."""
    labels = torch.arange(n) % nets.CLASSES
    images = torch.stack([render(int(label), seed + i, nets.SIZE) for i, label in enumerate(labels)])
    return (images - 0.45) / 0.25, labels


def has_statistics(model: nn.Module) -> bool:
    return any(isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) for module in model.modules())


def loss_of(name: str, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    answer = model(images)
    if name in WITH_IMAGES:
        return functional.mse_loss(answer, functional.avg_pool2d(images, 3, 1, 1))
    return functional.cross_entropy(answer, labels)


def train(name: str, folder: Path, seed: int, data: tuple[Tensor, Tensor]) -> None:
    """Write `NAME-SEED-MOMENT.pt` for every moment."""
    torch.manual_seed(seed)
    model = getattr(nets, name)().train()
    optimizer: torch.optim.Optimizer
    if has_statistics(model) and seed % 2:
        optimizer, peak = torch.optim.SGD(model.parameters(), momentum=0.9, weight_decay=1e-4), 0.1
    else:
        optimizer, peak = torch.optim.AdamW(model.parameters()), 3e-3
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=STEPS, pct_start=0.2)
    images, labels = data
    for step in range(STEPS + 1):
        if step in (0, 10, STEPS):
            moment = "end" if step == STEPS else str(step)
            torch.save(model.state_dict(), folder / f"{name}-{seed}-{moment}.pt")
        if step == STEPS:
            break
        chosen = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        loss_of(name, model, images[chosen], labels[chosen]).backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def score(name: str, state: dict[str, Tensor], data: tuple[Tensor, Tensor]) -> float:
    """Return the accuracy of a checkpoint in eval mode, or for images the share of the variance explained."""
    model = getattr(nets, name)().eval()
    model.load_state_dict(state)
    images, labels = data
    answer = model(images)
    if name in WITH_IMAGES:
        wanted = functional.avg_pool2d(images, 3, 1, 1)
        return float(1 - (answer - wanted).square().mean() / wanted.var())
    return float((answer.argmax(1) == labels).float().mean())


def train_all(folder: Path) -> None:
    """Train every network twice, once with each seed, unless the folder has its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [
        (name, seed)
        for seed in (1, 2)
        for name in nets.NAMES
        if not (folder / f"{name}-{seed}-end.pt").exists()
    ]
    data = draw(IMAGES, 0) if missing else None
    for name, seed in missing:
        print(f"training {name}, seed {seed}", flush=True)
        train(name, folder, seed, data)
