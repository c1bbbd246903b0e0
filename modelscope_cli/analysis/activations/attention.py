"""Attention weights of a run, by layer and head, independent of the layers' classes.

Attention is a softmax whose weights are multiplied with values computed from the input. Fused kernels hide the
weights, so `scaled_dot_product_attention` runs with the math backend here, equal up to rounding.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from modelscope_cli.analysis.spatial.cells import Cells, Tracker
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention
from modelscope_cli.records.run import Arguments

NO_ATTENTION = (
    "no attention in the selected layers: attention is a softmax whose result is multiplied by values "
    "computed from the input"
)


@dataclass(frozen=True, slots=True)
class Heads:
    """The weights of one softmax, split into heads."""

    # `(groups, heads, queries, keys)`, each row summing to 1; a group is an image, or a window of one
    weights: Tensor
    # queries, keys: `(groups, queries)` and `(groups, keys)` cells
    queries: Tensor
    keys: Tensor
    key_grid: tuple[int, ...] | None  # the grid of the keys' cells; None if they have no position
    n_images: int  # batch size


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention of a pass."""

    call: Call  # the innermost running layer that is not a softmax itself
    index: int  # 0 for the first attention in this call
    kept: Any  # the value computed from its heads

    @property
    def output(self) -> str:
        """Name of this output in records."""
        return f"attention.{self.index}" if self.index else "attention"


def by_head(values: Tensor, dim: int, queries: Cells, keys: Cells, n_images: int) -> Heads | None:
    """Split weights into heads: the heads of an image or window share their queries and keys.

    Args:
        values: the weights, of any shape.
        dim: one of the last two dimensions, along which they sum to 1.

    Returns:
        None where the weights are not a matrix for each head.
    """
    if values.ndim < 2 or dim % values.ndim < values.ndim - 2 or not values.numel():
        return None
    row_ids, column_ids = queries.ids, keys.ids
    if dim % values.ndim == values.ndim - 2:  # the keys are in the rows
        values, queries, keys = values.mT, keys, queries
        row_ids, column_ids = queries.ids.mT, keys.ids.mT
    weights = values.detach().flatten(0, -3) if values.ndim > 2 else values.detach()[None]
    of_queries = row_ids[..., 0].reshape(len(weights), -1)
    of_keys = column_ids[..., 0, :].reshape(len(weights), -1)
    n_heads, order = len(weights) // n_images, torch.arange(len(weights))
    if queries.grid is not None or keys.grid is not None:
        _, group, sizes = torch.unique(
            torch.cat([of_queries, of_keys], 1), dim=0, return_inverse=True, return_counts=True
        )
        if len(torch.unique(sizes)) > 1:
            return None
        n_heads, order = int(sizes[0]), group.argsort(stable=True)
    if not n_heads or len(weights) % n_heads:
        return None
    return Heads(
        weights[order.to(weights.device)].unflatten(0, (-1, n_heads)),
        of_queries[order][::n_heads],
        of_keys[order][::n_heads],
        keys.grid,
        n_images,
    )


class AttentionWatch:
    """Runs a model and records its attention.

    Args:
        keep: reduces the heads of an attention at once; the weights are not stored.
    """

    def __init__(self, selection: Selection, keep: Callable[[Heads], Any]) -> None:
        self.seen: list[AttentionCall] = []
        self.called: set[str] = set()
        self.tracker = Tracker(self._weigh, self._take)
        self._selection = selection
        self._keep = keep
        self._session: HookSession | None = None
        self._n_of_call: dict[Call, int] = {}

    def run(self, model: nn.Module, args: Arguments, interventions: Iterable[Intervention] = ()) -> None:
        """Run a model once, and add its attention to `seen`."""
        with HookSession(model, interventions=interventions) as session:
            self._session = session
            with sdpa_kernel(SDPBackend.MATH), self.tracker.follow(args):
                session.run(args)
            self.called |= session.first_calls.keys()
            self._session = None

    def _weigh(self, values: Tensor, dim: int, queries: Cells, keys: Cells) -> AttentionCall | None:
        running = self._session.running if self._session else ()
        if not any(self._selection.means(call.name, call.index, True) for call, _ in running):
            return None
        heads = by_head(values, dim, queries, keys, self.tracker.n_images)
        if heads is None:
            return None
        call = next(
            (call for call, module in running[::-1] if not isinstance(module, nn.Softmax)), running[0][0]
        )
        return AttentionCall(call, 0, self._keep(heads))

    def _take(self, attention: AttentionCall) -> None:
        index = self._n_of_call.get(attention.call, 0)
        self._n_of_call[attention.call] = index + 1
        self.seen.append(AttentionCall(attention.call, index, attention.kept))
