"""`stats` of attention: how widely each head looks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.attention import AttentionWatch, Heads, Seen
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Intervention
from modelscope_cli.records.run import Arguments
from modelscope_cli.records.stats import AttentionStats


@dataclass(frozen=True, slots=True)
class _Entropies:
    """Of one attention in one batch, on its device: `(heads,)` sums and extremes over queries, images and windows.

    Attributes:
        n: queries a head; `shape`: windows of an image, queries, keys.
    """

    total: Tensor
    low: Tensor
    high: Tensor
    n: int
    shape: tuple[int, int, int]

    def merge(self, other: "_Entropies") -> "_Entropies":
        return replace(
            self,
            total=self.total + other.total,
            low=torch.minimum(self.low, other.low),
            high=torch.maximum(self.high, other.high),
            n=self.n + other.n,
        )


def observe_attention(
    model: nn.Module,
    passes: Iterable[Arguments],
    selection: Selection,
    *,
    is_training: bool = False,
    interventions: Iterable[Intervention] = (),
) -> tuple[AttentionStats, ...]:
    """Run every pass once; return a row for each head of every attention inside the selected calls.

    Raises:
        ForwardError: the model raised (exit 4).
    """
    watch = AttentionWatch(selection, _entropies)
    watch.run(model, passes, is_training=is_training, interventions=interventions)
    merged: dict[tuple[str, int, int], tuple[Seen, _Entropies]] = {}
    for seen in watch.seen:
        key = seen.call.name, seen.call.index, seen.index
        known = merged.get(key)
        merged[key] = (known[0], known[1].merge(seen.kept)) if known else (seen, seen.kept)
    every = sorted(merged.values(), key=lambda one: (one[0].call.order, one[0].index))
    return tuple(row for seen, entropies in every for row in _rows(seen, entropies))


def _entropies(heads: Heads) -> _Entropies:
    entropy = torch.special.entr(heads.weights.float()).sum(-1)  # sum of -w log w; 0 where w is 0
    n_groups, _, n_queries, n_keys = heads.weights.shape
    # In windows, what lies nowhere is padding; elsewhere it is a class token or the like.
    is_real = (heads.queries >= 0) if heads.is_windowed else torch.ones_like(heads.queries, dtype=torch.bool)
    by_head = entropy.movedim(1, 0)[:, is_real.to(entropy.device)]
    shape = (n_groups // heads.n_images, n_queries, n_keys)
    return _Entropies(by_head.double().sum(1), by_head.amin(1), by_head.amax(1), by_head.shape[1], shape)


def _rows(seen: Seen, entropies: _Entropies) -> list[AttentionStats]:
    call, (n_windows, n_queries, n_keys) = seen.call, entropies.shape
    of_heads = zip(
        (entropies.total / entropies.n).tolist(), entropies.low.tolist(), entropies.high.tolist(), strict=True
    )
    return [
        AttentionStats(
            name=call.name,
            type=call.type,
            order=call.order,
            call=call.index,
            output=seen.output,
            head=head,
            heads=len(entropies.total),
            queries=n_queries,
            keys=n_keys,
            windows=n_windows,
            entropy=mean,
            entropy_min=low,
            entropy_max=high,
            ceiling=math.log(n_keys),
        )
        for head, (mean, low, high) in enumerate(of_heads)
    ]
