"""Replacement layers: the generalised ReLU and running batch norm."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GeneralReLU(nn.Module):
    """`min(leaky_relu(x, leak) - subtract, maximum)`, of any shape.

    A ReLU of N(0, 1) has mean 0.3989; subtracting about that keeps the mean near 0 through the layers. From
    J. Howard, "Deep Learning from the Foundations" (2019), lesson 10.
    """

    def __init__(self, leak: float = 0.0, subtract: float = 0.0, maximum: float | None = None) -> None:
        super().__init__()
        self.leak, self.subtract, self.maximum = leak, subtract, maximum

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(x, self.leak) - self.subtract
        return x if self.maximum is None else x.clamp_max(self.maximum)

    def extra_repr(self) -> str:
        return f"leak={self.leak:g}, subtract={self.subtract:g}, maximum={self.maximum}"


class RunningBatchNorm(nn.Module):
    """Batch norm that uses its running statistics in training as well: `(N, C, ...)` to the same.

    Sums, squares and counts are averaged, not means and variances, so that batch sizes are weighted correctly.
    The weight of a batch is `1 - (1 - momentum) / sqrt(max(N - 1, 1))`: a small batch moves less. From
    J. Howard, "Deep Learning from the Foundations" (2019), lesson 10. Gradients flow through the current batch.
    """

    sums: Tensor
    squares: Tensor
    count: Tensor
    seen: Tensor

    def __init__(self, num_features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("sums", torch.zeros(num_features))
        self.register_buffer("squares", torch.zeros(num_features))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        sums, squares, count = self._updated(x) if self.training else (self.sums, self.squares, self.count)
        is_fresh = int(self.seen) == 0
        mean = sums / count if not is_fresh else torch.zeros_like(sums)
        var = (squares / count - mean * mean).clamp_min(0) if not is_fresh else torch.ones_like(sums)
        if int(self.seen) < 20:  # too few images for a reliable variance
            var = var.clamp_min(0.01)
        factor = self.weight / (var + self.eps).sqrt()
        shape = (1, -1, *[1] * (x.ndim - 2))
        return x * factor.view(shape) + (self.bias - mean * factor).view(shape)

    def _updated(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dims = [d for d in range(x.ndim) if d != 1]
        share = 1 - (1 - self.momentum) / math.sqrt(max(len(x) - 1, 1))
        sums = torch.lerp(self.sums, x.sum(dims), share)
        squares = torch.lerp(self.squares, (x * x).sum(dims), share)
        count = torch.lerp(self.count, self.count.new_tensor(x.numel() / x.shape[1]), share)
        with torch.no_grad():
            self.sums.copy_(sums)
            self.squares.copy_(squares)
            self.count.copy_(count)
            self.seen += len(x)
        return sums, squares, count
