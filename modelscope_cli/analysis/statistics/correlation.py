"""The correlation between the channels of a layer, from sums that merge batch by batch."""

import torch
from torch import Tensor


class Comoments:
    """Sums for the covariance of channels over positions and images.

    `cov = E[xy] - E[x] E[y]` cancels when the means are large, so each batch is centred at its own mean (by way
    of its first row, which leaves exact zeros of a channel that never varies) and
    merged as in Chan, Golub, LeVeque (1979), carried over from squares to products. Rows with a value that is
    not finite are left out.

    Memory: one `(C, C)` matrix in float64 on the CPU.
    """

    def __init__(self) -> None:
        self.n = 0
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._products = torch.zeros(0, 0, dtype=torch.float64)
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, x: Tensor, channel_dim: int) -> None:
        """Add a batch; every position of every image is one observation of the C channels."""
        rows = x.detach().movedim(channel_dim, -1).flatten(0, -2)
        wide = torch.float32 if x.device.type == "mps" else torch.float64
        if not rows.numel():
            return
        is_whole = rows.isfinite().all(1, keepdim=True)
        rows = torch.where(is_whole, rows, 0).to(wide)
        n = is_whole.sum()
        first = rows.index_select(0, is_whole.to(torch.uint8).argmax(0))
        rows = torch.where(is_whole, rows - first, 0)
        mean = rows.sum(0) / n.clamp_min(1)
        centred = torch.where(is_whole, rows - mean, 0)
        self._pending.append((n, first[0] + mean, centred.T @ centred))

    def settle(self) -> None:
        """Merge the batches added since; waits for the device."""
        for parts in self._pending:
            n, mean, products = (part.to("cpu", torch.float64) for part in parts)
            self._merge(int(n), mean, products)
        self._pending.clear()

    def merge(self, other: "Comoments") -> None:
        """Add the observations of another; both must be settled."""
        self._merge(other.n, other._mean, other._products)

    def _merge(self, n: int, mean: Tensor, products: Tensor) -> None:
        if not self.n:
            self.n, self._mean, self._products = n, mean, products
            return
        total = self.n + n
        delta = mean - self._mean
        self._products += products + torch.outer(delta, delta) * (self.n * n / total)
        self._mean = self._mean + delta * (n / total)
        self.n = total

    def correlation(self) -> Tensor:
        """Return the `(C, C)` matrix of Pearson correlations in float64; NaN for a channel that never varied."""
        std = self._products.diagonal().clamp_min(0).sqrt()
        matrix = self._products / torch.outer(std, std)
        matrix[std == 0, :] = torch.nan
        matrix[:, std == 0] = torch.nan
        return matrix.clamp(-1, 1)
