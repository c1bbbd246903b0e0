"""`featuremaps` of attention: where in the image each head looks."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.attention import AttentionWatch, Heads, Seen
from modelscope_cli.analysis.activations.channel_choice import ChannelChoice
from modelscope_cli.analysis.activations.maps import Exhibit, finished
from modelscope_cli.analysis.places.arrange import one_frame
from modelscope_cli.hooks.selection import Selection, uncalled
from modelscope_cli.hooks.session import Intervention
from modelscope_cli.records.featuremaps import FeatureMap
from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import Arguments

KIND = "attention"


@dataclass(frozen=True, slots=True)
class _Look:
    """What is kept of an attention for the first image.

    Attributes:
        shape: of the weights: heads, queries, keys; windows before them.
        received: `(heads, cells)` the mean weight each place gets from the queries that lie in the image, or where
            none of them does from all, which are `n_queries` then.
        rows: `(queries that lie nowhere, heads, cells)` theirs, and `positions`: where these stand among the
            queries.
        notes: what was left out or put together.
        problem: why there is none of it.
    """

    shape: tuple[int, ...]
    grid: tuple[int, ...] = ()
    received: Tensor | None = None
    n_queries: int = 0
    rows: Tensor | None = None
    positions: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None


def capture_attention(
    model: nn.Module,
    args: Arguments,
    selection: Selection,
    *,
    choice: ChannelChoice,
    interventions: Iterable[Intervention] = (),
) -> tuple[list[Exhibit], tuple[str, ...]]:
    """Run the model once; return a map a head of every attention inside the selected calls, in execution order, and
    the selected layers that were never called.

    For a class token, which the model reads alone at its end, a map is the row of this token: how much it takes
    from each place. Otherwise it is the mean over the queries: how much each place gives.

    Raises:
        ForwardError: the model raised (exit 4).
    """
    watch = AttentionWatch(selection, _look)
    watch.run(model, [args], interventions=interventions)
    exhibits = [_exhibit(seen, list(watch.tracker.read_alone)) for seen in watch.seen]
    never = uncalled(model, selection, watch.called, args) if selection.names is not None else ()
    return finished(exhibits, choice), never


def _look(heads: Heads) -> _Look:
    n_groups = len(heads.weights) // heads.n_images
    shape = tuple(heads.weights.shape[1:])
    shape = (n_groups, *shape) if n_groups > 1 else shape
    if heads.key_grid is None:
        return _Look(shape, problem="what it weighs are not places of the image")
    n_cells = math.prod(heads.key_grid)
    is_mine = ((heads.keys >= 0) & (heads.keys < n_cells)).any(1)
    weights, keys = heads.weights[is_mine.to(heads.weights.device)].float(), heads.keys[is_mine]
    queries = heads.queries[is_mine]
    is_placed = queries >= 0
    is_anywhere = bool(is_placed.any())
    is_counted = is_placed if is_anywhere else torch.ones_like(is_placed)
    share = is_counted.float() / is_counted.sum(1, keepdim=True).clamp_min(1)
    received = torch.einsum("gq,ghqk->ghk", share.to(weights.device), weights)
    n_left = int((keys < 0).sum())
    notes = []
    if n_groups > 1:
        notes.append(f"put together from {counted(n_groups, 'window')}")
    if n_left:
        is_padding = n_groups > 1 or bool(is_placed.all())
        notes.append("without padding" if is_padding else f"without {counted(n_left, 'extra token')}")
    positions = tuple(torch.nonzero(~is_placed[0]).flatten().tolist()) if len(queries) == 1 else ()
    return _Look(
        shape,
        heads.key_grid,
        _laid(received, keys, n_cells),
        0 if is_anywhere else queries.shape[1],
        torch.stack([_laid(weights[:, :, at], keys, n_cells) for at in positions]) if positions else None,
        positions,
        tuple(notes),
    )


def _laid(weights: Tensor, keys: Tensor, n_cells: int) -> Tensor:
    """Lay `(groups, heads, keys)` weights where the keys lie, `(heads, cells)`; the mean where several lie in
    one."""
    is_placed = keys >= 0
    cells = keys[is_placed].to(weights.device)
    flat = weights.movedim(1, -1)[is_placed.to(weights.device)].T
    sums = weights.new_zeros(len(flat), n_cells).index_add_(1, cells, flat)
    return sums / weights.new_zeros(n_cells).index_add_(0, cells, weights.new_ones(len(cells)))


def _exhibit(seen: Seen, class_tokens: Sequence[int]) -> Exhibit:
    call, look = seen.call, seen.kept
    record = FeatureMap(call.name, call.type, call.order, call.index, seen.output, look.shape, kind=KIND)
    if look.problem is not None:
        return Exhibit(replace(record, problem=look.problem), None)
    token = next((token for token in class_tokens if token in look.positions), None)
    if token is not None:
        of, weights = f"attention of the class token (token {token})", look.rows[look.positions.index(token)]
    else:
        which = f"{look.n_queries} queries" if look.n_queries else "the queries"
        of = "attention of the one query" if look.n_queries == 1 else f"attention received, mean over {which}"
        weights = look.received
    found = one_frame(weights.unflatten(1, look.grid), [of, *look.notes])
    assert found.maps is not None
    return Exhibit(replace(record, channels=len(found.maps), note=found.note), found.maps)
