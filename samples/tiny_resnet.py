"""A small residual network of your own, for ``modelscope ... --model samples/tiny_resnet.py:TinyResNet``.

It is short, but it holds the four things which tools that hook layers get wrong most often:

- **In-place ReLU.** It overwrites its input. A tool which keeps a reference to the output of the batch norm
  before it, instead of a copy, shows the rectified values there: no negative number is left.
- **A ReLU used twice.** `Block.relu` runs twice in one forward pass, so its hook fires twice. A tool which
  files outputs under the name of the module keeps only the second.
- **A residual addition.** It is an operator, not a module: no hook sees it, and its result is visible only
  as the input of what follows.
- **Batch norm.** It uses the batch in training mode and its running statistics in evaluation mode; a tool
  which forgets `eval()` shows other numbers, and changes the model just by looking at it.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)  # one module, two calls
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class TinyResNet(nn.Module):
    """Pictures (N, 3, H, W) from 32 pixels up, normalised as for ImageNet, to scores (N, num_classes)."""

    def __init__(self, num_classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.block1 = Block(width, width)
        self.block2 = Block(width, 2 * width, stride=2)
        self.block3 = Block(2 * width, 4 * width, stride=2)
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.bn(self.conv(x))))
        x = self.block3(self.block2(self.block1(x)))
        return self.head(torch.mean(x, dim=(2, 3)))


def tiny_resnet(width: int = 16) -> nn.Module:
    """The same network from a function, for ``--model samples/tiny_resnet.py:tiny_resnet``."""
    return TinyResNet(width=width)
