"""Small models whose explanation is known, and a way to ask a method about them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.explaining.layer import ModuleNames, find_layer
from modelscope_cli.analysis.explaining.methods import METHODS
from modelscope_cli.analysis.explaining.scored import Scored
from modelscope_cli.analysis.explaining.target import ClassTarget
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.hooks.forward_passes import opened


@contextmanager
def scored(
    model: nn.Module, index: int = 0, *, layer: tuple[str, ...] = (), batch: int = 16
) -> Iterator[Scored]:
    """Open a model for questions about one of its classes."""
    names, reader = ModuleNames(), OutputReader("custom", None, model)
    with opened(model, lambda images: (images,), observers=[names]) as run:
        yield Scored(
            run, ClassTarget(reader, index), batch, lambda s, image: find_layer(s, names, image, layer)
        )


def explained(method: str, model: nn.Module, image: Tensor, index: int = 0, **how):
    """Return the map of one method."""
    with scored(model, index, **how) as question:
        return METHODS[method].explain(question, image)


class Pooled(nn.Module):
    """Convolutions, global pooling, a linear head: its cells add up to the logit less the bias."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU(inplace=True)
        )
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Flattened(nn.Module):
    """The same with a head that sees every place."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Pooled().features
        self.head = nn.Linear(12 * 8 * 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


class Boxes(nn.Module):
    """Two classes, each the mean of the image over a box of its own."""

    corners = ((4, 4), (20, 18))
    side = 8

    def forward(self, x: Tensor) -> Tensor:
        means = [
            x[:, :, t : t + self.side, left : left + self.side].mean((1, 2, 3)) for t, left in self.corners
        ]
        return torch.stack(means, 1)

    def share_inside(self, cells: Tensor, index: int) -> float:
        top, left = self.corners[index]
        inside = cells[top : top + self.side, left : left + self.side].clamp_min(0)
        return float(inside.sum() / cells.clamp_min(0).sum())


def image(seed: int = 0, side: int = 32) -> Tensor:
    return torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(seed))


def drawn(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return a model in eval mode whose weights come from a seed, batch norms and all."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(0.3 * torch.randn(len(module.running_mean), generator=generator))
                module.running_var.copy_(0.5 + torch.rand(len(module.running_var), generator=generator))
    return model.eval().requires_grad_(False)
