"""Small networks of sixteen families, in torch alone: functions without arguments, for `nets.py:NAME`.

Images are 3 x 48 x 48, in ten classes; `autoencoder` and `unet` answer with an image.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torchvision.models import DenseNet, ShuffleNetV2, mobilenet_v2, mobilenet_v3_small
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

SIZE, CLASSES = 48, 10
Norm = Callable[[int], nn.Module]


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def unit(inside: int, outside: int, norm: Norm, act: nn.Module, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, 3, stride, 1, bias=norm is nn.Identity)
    return nn.Sequential(conv, norm(outside), act)


def plain(norm: Norm = nn.BatchNorm2d, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    widths = (3, 16, 24, 32, 48)
    units = [unit(*pair, norm, act(), 2) for pair in pairwise(widths)]
    return nn.Sequential(*units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, CLASSES))


def plain_silu() -> nn.Sequential:
    return plain(act=nn.SiLU)


def plain_tanh() -> nn.Sequential:
    return plain(act=nn.Tanh)


def vgg() -> nn.Sequential:
    """Without any norm."""
    return plain(nn.Identity)


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, norm: Norm) -> None:
        super().__init__()
        self.first = unit(inside, outside, norm, nn.ReLU(), 2)
        self.second = nn.Sequential(nn.Conv2d(outside, outside, 3, 1, 1, bias=False), norm(outside))
        self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, 2, bias=False), norm(outside))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.first(x)) + self.short(x))


def resnet(norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    blocks = (Residual(16, 16, norm), Residual(16, 32, norm), Residual(32, 48, norm))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, CLASSES))
    return nn.Sequential(unit(3, 16, norm, nn.ReLU()), *blocks, *head)


def resnet_groups() -> nn.Sequential:
    return resnet(groups)


def mobilenet2() -> nn.Module:
    return mobilenet_v2(num_classes=CLASSES, width_mult=0.25)


def mobilenet3() -> nn.Module:
    return mobilenet_v3_small(num_classes=CLASSES, width_mult=0.35)


def shufflenet() -> nn.Module:
    return ShuffleNetV2([2, 2, 2], [16, 24, 48, 96, 128], num_classes=CLASSES)


def densenet() -> nn.Module:
    return DenseNet(8, (2, 3, 3), 16, num_classes=CLASSES)


def vit() -> nn.Module:
    return VisionTransformer(SIZE, 8, 4, 4, 48, 96, num_classes=CLASSES)


def swin() -> nn.Module:
    return SwinTransformer([2, 2], 24, [1, 2], [2, 4], [3, 3], stochastic_depth_prob=0.0, num_classes=CLASSES)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act = nn.GELU()
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).movedim(1, -1))
        return x + (self.scale * self.narrow(self.act(self.widen(y)))).movedim(-1, 1)


def convnext() -> nn.Sequential:
    stem = nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.GroupNorm(1, 32))
    down = nn.Sequential(nn.GroupNorm(1, 32), nn.Conv2d(32, 48, 2, 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, CLASSES))
    return nn.Sequential(stem, ConvNextBlock(32), down, ConvNextBlock(48), ConvNextBlock(48), *head)


def mlp() -> nn.Sequential:
    def layer(inside: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inside, 128), nn.BatchNorm1d(128), nn.ReLU())

    return nn.Sequential(
        nn.AvgPool2d(3), nn.Flatten(), layer(768), layer(128), layer(128), nn.Linear(128, CLASSES)
    )


def autoencoder() -> nn.Sequential:
    down = [unit(a, b, nn.BatchNorm2d, nn.ReLU(), 2) for a, b in ((3, 16), (16, 24), (24, 32))]
    up = [
        nn.Sequential(nn.ConvTranspose2d(a, b, 2, 2), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in ((32, 24), (24, 16), (16, 8))
    ]
    return nn.Sequential(*down, *up, nn.Conv2d(8, 3, 3, 1, 1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top, self.low = (
            unit(3, 16, nn.BatchNorm2d, nn.ReLU()),
            unit(16, 32, nn.BatchNorm2d, nn.ReLU(), 2),
        )
        self.deep = unit(32, 32, nn.BatchNorm2d, nn.ReLU(), 2)
        self.up = nn.Upsample(scale_factor=2)
        self.join_low, self.join_top = (
            unit(64, 16, nn.BatchNorm2d, nn.ReLU()),
            unit(32, 16, nn.BatchNorm2d, nn.ReLU()),
        )
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.top(x)
        low = self.low(top)
        middle = self.join_low(torch.cat([self.up(self.deep(low)), low], 1))
        return self.head(self.join_top(torch.cat([self.up(middle), top], 1)))


def unet() -> nn.Module:
    return UNet()


NAMES = (
    *("plain", "plain_silu", "plain_tanh", "vgg", "resnet", "resnet_groups", "mobilenet2", "mobilenet3"),
    *("shufflenet", "densenet", "vit", "swin", "convnext", "mlp", "autoencoder", "unet"),
)
