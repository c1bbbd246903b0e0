"""Statistics of gradients as they come: of one tensor over several passes, or of its mean over them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import RANGE, RANGE_AND_ZEROS, Moments
from modelscope_cli.analysis.statistics.reduce import reduce_tensor


def norm_of(moments: Moments) -> float:
    """Return the Euclidean norm of the finite values; 0 where there are none."""
    return moments.rms * math.sqrt(moments.n) if moments.n else 0.0


def figures_of(moments: Moments) -> dict[str, Any]:
    """Return the columns that say how the values of a gradient are distributed."""
    non_finite = {"nan_count": moments.n_nan, "inf_count": moments.n_inf}
    if not moments.n:
        return non_finite
    return {
        "grad_norm": norm_of(moments),
        "grad_mean": moments.mean,
        "grad_std": moments.std,
        "grad_min": moments.low,
        "grad_max": moments.high,
        "grad_abs_max": max(abs(moments.low), abs(moments.high)),
        **non_finite,
    }


def dense(grad: Tensor) -> Tensor:
    """Return a gradient with its zeros written out: an embedding's may come sparse."""
    return grad.to_dense() if grad.is_sparse else grad


@dataclass(slots=True)
class Stream:
    """Moments of all gradients that arrived at one place; none of them is kept."""

    moments: Moments | None = None
    _pending: list[Callable[[], Moments]] = field(default_factory=list)

    def add(self, grad: Tensor) -> None:
        """Start to reduce a gradient; raises TypeError for kinds without statistics."""
        self._pending.append(reduce_tensor(dense(grad), None, RANGE))

    def settle(self) -> None:
        """Merge what the pass brought; on an accelerator this is where the numbers come over."""
        for finish in self._pending:
            moments = finish()
            self.moments = self.moments.merge(moments) if self.moments else moments
        self._pending.clear()


@dataclass(slots=True)
class Mean:
    """The mean of a gradient over passes and the noise around it, without keeping the passes.

    D. H. D. West, "Updating Mean and Variance Estimates" (1979), with vectors: the mean is one, the weighted sum of
    squared distances from it a number.
    """

    n: int = 0
    value: Tensor | None = None
    _weights: int = 0
    _squared_weights: int = 0
    _squares: Tensor | float = 0.0

    def add(self, grad: Tensor, weight: int = 1) -> None:
        """Take over a gradient, the mean over `weight` images; nothing else may change it from now on."""
        self.n += 1
        self._weights += weight
        self._squared_weights += weight**2
        if self.value is None:
            self.value = grad
            return
        delta = grad - self.value
        self.value = self.value + delta * (weight / self._weights)
        norm = torch.linalg.vector_norm(delta, dtype=torch.float64)
        self._squares = self._squares + norm.square() * (weight * (1 - weight / self._weights))

    @property
    def noise(self) -> float | None:
        """Root of the trace of the covariance between passes; None with fewer than two."""
        if self.n < 2:
            return None
        return math.sqrt(float(self._squares) / (self._weights - self._squared_weights / self._weights))

    def moments(self) -> Moments:
        """Return the moments of the mean gradient."""
        assert self.value is not None
        return reduce_tensor(self.value, None, RANGE_AND_ZEROS)()
