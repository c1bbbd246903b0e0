"""`featuremaps`: the public function, and maps of attention."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from modelscope_cli.analysis.activations.arranged import of_middle_frame
from modelscope_cli.analysis.activations.attention import AttentionCall, AttentionWatch, Heads
from modelscope_cli.analysis.activations.filters import filters_of
from modelscope_cli.analysis.activations.maps import (
    CapturedOutput,
    ChannelChoice,
    blocks_of,
    capture_maps,
    choose_channels,
    finished,
    nothing_to_draw,
)
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.selection import Selection, uncalled
from modelscope_cli.hooks.session import Intervention
from modelscope_cli.inputs.python_inputs import to_inputs
from modelscope_cli.models.request import Model
from modelscope_cli.records.featuremaps import FeatureMap, FeatureMapsRecord, KeptMaps, MapLook
from modelscope_cli.records.keywords import Keywords, as_tuple, spelled_out
from modelscope_cli.records.naming import block_of, counted
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.refusals import check_range, check_word, refuse_both
from modelscope_cli.records.run import Arguments

KIND = "attention"


@dataclass(frozen=True, slots=True)
class _AttentionMap:
    """The attention of one call for the first image."""

    shape: tuple[int, ...]  # of the weights: windows if there are several, heads, queries, keys
    grid: tuple[int, ...] = ()
    # `(heads, cells)` mean weight of each cell over the queries that have a position in the image; if none has,
    # over all queries, whose number is `n_queries` then
    received: Tensor | None = None
    n_queries: int = 0
    rows: Tensor | None = None  # `(queries without a position, heads, cells)` weights
    positions: tuple[int, ...] = ()  # the indices of these queries
    notes: tuple[str, ...] = ()  # what was omitted or assembled
    problem: str | None = None  # why it cannot be drawn


def capture_attention(
    model: nn.Module,
    args: Arguments,
    selection: Selection,
    *,
    choice: ChannelChoice,
    interventions: Iterable[Intervention] = (),
) -> tuple[list[CapturedOutput], tuple[str, ...]]:
    """Run the model once; return a map per head of every attention inside the selected calls, in execution order,
    and the selected layers that were never called.

    With a class token, a token that the model reads alone at its end, a map is the row of this token. Otherwise it
    is the mean over the queries.
    """
    watch = AttentionWatch(selection, _look)
    watch.run(model, args, interventions)
    exhibits = [_exhibit(attention, list(watch.tracker.read_alone)) for attention in watch.seen]
    never = uncalled(model, selection, watch.called, args) if selection.names is not None else ()
    return finished(exhibits, choice), never


def _look(heads: Heads) -> _AttentionMap:
    n_groups = len(heads.weights) // heads.n_images
    shape = tuple(heads.weights.shape[1:])
    shape = (n_groups, *shape) if n_groups > 1 else shape
    if heads.key_grid is None:
        return _AttentionMap(shape, problem="its keys are not positions in the image")
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
        notes.append(f"assembled from {counted(n_groups, 'window')}")
    if n_left:
        is_padding = n_groups > 1 or bool(is_placed.all())
        notes.append("without padding" if is_padding else f"without {counted(n_left, 'extra token')}")
    positions = tuple(torch.nonzero(~is_placed[0]).flatten().tolist()) if len(queries) == 1 else ()
    return _AttentionMap(
        shape,
        heads.key_grid,
        _laid(received, keys, n_cells),
        0 if is_anywhere else queries.shape[1],
        torch.stack([_laid(weights[:, :, at], keys, n_cells) for at in positions]) if positions else None,
        positions,
        tuple(notes),
    )


def _laid(weights: Tensor, keys: Tensor, n_cells: int) -> Tensor:
    """Scatter `(groups, heads, keys)` weights into `(heads, cells)`; several keys in one cell are averaged."""
    is_placed = keys >= 0
    cells = keys[is_placed].to(weights.device)
    flat = weights.movedim(1, -1)[is_placed.to(weights.device)].T
    sums = weights.new_zeros(len(flat), n_cells).index_add_(1, cells, flat)
    return sums / weights.new_zeros(n_cells).index_add_(0, cells, weights.new_ones(len(cells)))


def _exhibit(attention: AttentionCall, class_tokens: Sequence[int]) -> CapturedOutput:
    call, look = attention.call, attention.kept
    record = FeatureMap(call.name, call.type, call.order, call.index, attention.output, look.shape, kind=KIND)
    if look.problem is not None:
        return CapturedOutput(replace(record, problem=look.problem), None)
    token = next((token for token in class_tokens if token in look.positions), None)
    if token is not None:
        of, weights = f"attention of the class token (token {token})", look.rows[look.positions.index(token)]
    else:
        which = f"{look.n_queries} queries" if look.n_queries else "the queries"
        of = (
            "attention of the only query" if look.n_queries == 1 else f"attention received, mean over {which}"
        )
        weights = look.received
    arranged = of_middle_frame(weights.unflatten(1, look.grid), [of, *look.notes])
    assert arranged.maps is not None
    record = replace(record, channels=len(arranged.maps), note=arranged.note)
    return CapturedOutput(record, arranged.maps)


FEW = 24  # outputs that are all drawn
_MOST_BLOCKS = 12
_FEWEST_STAGES = 3


def one_a_stage(exhibits: Sequence[CapturedOutput]) -> list[CapturedOutput]:
    """Return the last output of each stage (maps of one size), in order; all outputs if there are at most `FEW`.

    Of a network whose maps all have one size, such as a vision transformer, return the output of each block, or of
    a dozen of them.
    """
    blocks = blocks_of(exhibit.record.name for exhibit in exhibits)

    def block(exhibit: CapturedOutput) -> str:
        name = exhibit.record.name
        return name if name in blocks else block_of(name)

    drawable = [exhibit for exhibit in exhibits if exhibit.maps is not None]
    if len(drawable) <= FEW:
        return list(exhibits)
    # Rows, such as tokens without a position, only count where there are no maps.
    rows, maps = ([one for one in drawable if side(_size(one), default=1) > 1] for side in (max, min))
    spatial = maps or rows
    by_size = {_size(exhibit): exhibit for exhibit in spatial}
    # The first layers of a block may still have the size of the stage before, so ends of blocks take precedence.
    ends = [list(run)[-1] for _, run in groupby(spatial, block)]
    by_size |= {_size(exhibit): exhibit for exhibit in ends}
    if len(by_size) >= _FEWEST_STAGES:
        return [exhibit for exhibit in spatial if exhibit is by_size[_size(exhibit)]]
    of_blocks = [exhibit for exhibit in ends if exhibit.record.name in blocks]
    of_blocks = of_blocks if len(of_blocks) >= _FEWEST_STAGES else ends or drawable
    n = min(_MOST_BLOCKS, len(of_blocks))
    return [of_blocks[round((len(of_blocks) - 1) * i / max(n - 1, 1))] for i in range(n)]


def _size(exhibit: CapturedOutput) -> tuple[int, ...]:
    """Return height and width of the maps; an empty tuple for a vector."""
    return tuple(exhibit.maps.shape[1:]) if exhibit.maps is not None else ()


@spelled_out
def featuremaps(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    channels: str | Sequence[int] = (),
    max_channels: int = 64,
    scale: str = "channel",
    overlay: bool = False,
    attention: bool = False,
    filters: bool = False,
    hook: str | Sequence[str] = (),
    progress: Progress | None = None,
    **keywords: Unpack[Keywords],
) -> FeatureMapsRecord:
    """Return shapes and ranges of one image's feature maps; `record.save` writes the maps.

    The forward pass stops after the last selected layer. Without `layer`, a network with more than forty outputs
    gives one per stage: the last of each map size.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: a path, a PIL image or a tensor; None for seeded noise of the model's input size.
        layer, exclude: layer patterns.
        channels: only these channels, by index: 3,7,10..20; a single number is an index, not a count. In Python
            also `[3, 7]`.
        max_channels: at most this many channels, evenly spaced.
        scale: the colour range: of each channel, or of the layer.
        overlay: draw the maps over the gray image; stronger values are more opaque.
        attention: draw each attention head of the layers: the attention from the class token to each position or,
            without a class token, the mean attention that each position receives.
        filters: draw the filters of the convolutions, for which nothing is run.
        hook: changes to values during the pass, in the syntax of `--hook`.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded or raises an error, nothing can be drawn, or a file cannot be
            read or written (exit 4).
    """
    check_range("max_channels", max_channels, least=1)
    check_word("scale", scale, ("channel", "layer"))
    for name, is_on_an_image in {"overlay": overlay, "attention": attention}.items():
        if filters and is_on_an_image:
            refuse_both("filters", filters, name, is_on_an_image, "filters are drawn without an image")
    choice = choose_channels(channels, max_channels)
    python_inputs = to_inputs(inputs, keywords)
    python_inputs.request.check_one()
    subject = Subject("featuremaps", model, python_inputs, keywords, hook=hook, progress=progress)
    subject.open()
    image = None if filters else _only_image(subject, overlay)
    module = subject.loaded.module
    selection = Selection() if filters else subject.select(layer, exclude)
    of_first = module, subject.first.args, selection
    interventions = subject.bind().interventions
    never: tuple[str, ...] = ()
    if filters:
        exhibits, n_small = filters_of(module, as_tuple(layer), as_tuple(exclude), choice)
        if n_small:
            small = counted(n_small, "convolution")
            subject.progress.note(f"without {small} of 1 x 1 or without two dimensions")
    elif attention:
        exhibits, never = capture_attention(*of_first, choice=choice, interventions=interventions)
    else:
        exhibits = capture_maps(*of_first, choice=choice, interventions=interventions)
        shown = [exhibit.record.name for exhibit in exhibits]
        dropouts = {name for name, one in module.named_modules() if isinstance(one, _DropoutNd)}
        idle = dropouts.difference(shown) if selection.is_innermost_only else set()
        if idle:
            left_out = f"without {counted(len(idle), 'dropout layer')}: in eval mode they do nothing"
            subject.progress.note(left_out)
        never = subject.uncalled(selection, [*idle, *shown])
    hooks = subject.conclude()
    n_outputs, others = len(exhibits), _pattern_of(exhibits)
    broken = [one for one in exhibits if one.record.non_finite][:1]
    if not layer and not exclude:
        chosen = exhibits[:FEW] if filters else one_a_stage(exhibits)
        exhibits = [one for one in exhibits if any(one is other for other in (*chosen, *broken))]
    which = "the first ones" if filters else "one per stage"
    which += " and the first that is NaN or infinite" * bool(broken)
    if len(exhibits) < n_outputs:
        said = f"{len(exhibits)} of {n_outputs} outputs are drawn, {which}; for others: --layer {others}"
        subject.progress.note(said)
    rows = [exhibit.record for exhibit in exhibits]
    if not any(row.shown for row in rows):
        raise nothing_to_draw(rows, never, attention)
    record = FeatureMapsRecord(
        run=subject.run(),
        maps=tuple(rows),
        contact_sheet=None,
        out_dir=None,
        not_called=never,
        hooks=hooks,
        outputs=n_outputs,
    )
    look = MapLook(scale, image, is_overlay=overlay)
    kept = (None if exhibit.maps is None else exhibit.maps.cpu() for exhibit in exhibits)
    return record.keep(KeptMaps(tuple(kept), look))


def _only_image(subject: Subject, is_overlay: bool) -> "Tensor | None":
    """Return the image, `(3, H, W)` uint8; None for noise and tensors."""
    if subject.inputs.n_images > 1 and not subject.given.is_noise:
        message = f"one image at a time; {subject.given.name} has {subject.inputs.n_images}"
        is_of_files = subject.inputs.make_blocks is not None and subject.first.names
        raise UsageError(message, "give one image file" if is_of_files else "give a tensor of one image")
    image = next(iter(subject.first.pictures), None)
    if is_overlay and image is None:
        raise UsageError("--overlay needs an image to lay the maps over", "leave out --overlay")
    return image


def _pattern_of(exhibits: Sequence[CapturedOutput]) -> str:
    """Return a layer pattern that matches outputs: of the more usual kind of layer, else a name."""
    types = [one.record.type.lower() for one in exhibits]
    counts = {kind: sum(one.startswith(kind) for one in types) for kind in ("conv", "linear")}
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] else next((one.record.name for one in exhibits), "")
