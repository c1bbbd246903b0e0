"""`stats` and `observe`: the public functions, and the entropy of attention."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.attention import NO_ATTENTION, AttentionCall, AttentionWatch, Heads
from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver
from modelscope_cli.analysis.activations.input_stats import ArgumentStats, to_input_row
from modelscope_cli.analysis.activations.observer import ActivationObserver, observe_activations, to_rows
from modelscope_cli.analysis.blocks.blocks import Blocks
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.subject import Subject, as_patterns, describe_module, header
from modelscope_cli.errors import CannotRunError, ModelscopeError
from modelscope_cli.hooks.selection import Selection, names_of
from modelscope_cli.hooks.session import HookSession, Intervention
from modelscope_cli.inputs.forward_signature import training_args
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import Model
from modelscope_cli.records.keywords import MODES, BlockKeywords, block_keywords, spelled_out
from modelscope_cli.records.naming import NEAR_ZERO, some
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.refusals import check_range, check_word
from modelscope_cli.records.run import Arguments, Notice
from modelscope_cli.records.stats import (
    COLUMN_OF_FIGURE,
    AttentionStats,
    StatsRecord,
    quantiles_in,
)


class Observation:
    """Statistics gathered by `observe`; `.record()` returns those of all forwards so far."""

    def __init__(self, loaded: LoadedModel, observer: ActivationObserver, near_zero: float) -> None:
        self._loaded = loaded
        self._observer = observer
        self._near_zero = near_zero

    def record(self) -> StatsRecord:
        """Return one row per output of each call, over all forwards; `images` counts along the first dimension."""
        self._observer.settle()
        activations = sorted(self._observer.activations.values(), key=lambda item: item.call.order)
        rows = to_rows(activations)
        images = rows[0].numel // max(math.prod(rows[0].shape[1:]), 1) if rows else 0
        warnings = [] if rows else [Notice("nothing_observed", "none of the layers has run in the block yet")]
        return StatsRecord(header("stats", self._loaded, None, 0, warnings), rows, images, self._near_zero)

    def __str__(self) -> str:
        return str(self.record())

    def _repr_html_(self) -> str:
        return self.record()._repr_html_()


@contextmanager
def observe(
    model: nn.Module | LoadedModel,
    layer: str | Sequence[str] = (),
    *,
    exclude: str | Sequence[str] = (),
    near_zero: float = NEAR_ZERO,
) -> Iterator[Observation]:
    """Gather statistics of the activations while you run the model yourself, in whichever mode it is.

    Args:
        layer, exclude: layer patterns as on the command line, without positions (`#`, `@`).
        near_zero: |x| below this counts as near zero.

    When the block ends every hook is gone; the model's own state is yours and is left alone.

    Raises:
        UsageError: a pattern that matches nothing.
    """
    loaded = model if isinstance(model, LoadedModel) else describe_module(model)
    take = as_patterns(layer)
    try:
        names = names_of(loaded.module, take, as_patterns(exclude))
    except ModelscopeError as error:
        error.speak_python()
        raise
    # The mean absolute deviation over several forwards would need a second pass.
    observer = ActivationObserver(Wanted(mad=False, threshold=near_zero), is_innermost_only=not take)
    with HookSession(loaded.module, [observer], names=names, is_restoring=False):
        yield Observation(loaded, observer, near_zero)


@dataclass(frozen=True, slots=True)
class _Entropies:
    """Entropies of one attention: `(heads,)` sums and extremes over queries, images and windows, on its device."""

    total: Tensor
    low: Tensor
    high: Tensor
    n: int  # number of queries per head
    shape: tuple[int, int, int]  # windows per image, queries, keys

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
    """Run every pass once; return a row per head of every attention inside the selected calls."""
    watch = AttentionWatch(selection, _entropies)
    watch.run(model, passes, is_training=is_training, interventions=interventions)
    merged: dict[tuple[str, int, int], tuple[AttentionCall, _Entropies]] = {}
    for attention in watch.seen:
        key = attention.call.name, attention.call.index, attention.index
        earlier = merged.get(key)
        merged[key] = (
            (earlier[0], earlier[1].merge(attention.kept)) if earlier else (attention, attention.kept)
        )
    in_order = sorted(merged.values(), key=lambda item: (item[0].call.order, item[0].index))
    return tuple(row for attention, entropies in in_order for row in _rows(attention, entropies))


def _entropies(heads: Heads) -> _Entropies:
    entropy = torch.special.entr(heads.weights.float()).sum(-1)  # sum of -w log w; 0 where w is 0
    n_groups, _, n_queries, n_keys = heads.weights.shape
    # In windows, queries without a position are padding; elsewhere they are extra tokens.
    is_real = (heads.queries >= 0) if heads.is_windowed else torch.ones_like(heads.queries, dtype=torch.bool)
    by_head = entropy.movedim(1, 0)[:, is_real.to(entropy.device)]
    shape = (n_groups // heads.n_images, n_queries, n_keys)
    return _Entropies(by_head.double().sum(1), by_head.amin(1), by_head.amax(1), by_head.shape[1], shape)


def _rows(attention: AttentionCall, entropies: _Entropies) -> list[AttentionStats]:
    call, (n_windows, n_queries, n_keys) = attention.call, entropies.shape
    of_heads = zip(
        (entropies.total / entropies.n).tolist(), entropies.low.tolist(), entropies.high.tolist(), strict=True
    )
    return [
        AttentionStats(
            **call.fields,
            output=attention.output,
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


@spelled_out
def stats(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    near_zero: float = NEAR_ZERO,
    attention: bool = False,
    hook: str | Sequence[str] = (),
    mode: str = "auto",
    columns: Sequence[str] | None = None,
    out: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[BlockKeywords],
) -> StatsRecord:
    """Return statistics of every layer's output, over any number of images, in constant memory.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: paths, PIL images, tensors, a dict of arguments by name, a `DataLoader`; None for seeded noise of
            the model's input size.
        layer, exclude: layer patterns.
        near_zero: |x| below this counts as near zero.
        attention: also measure each attention head of the layers, in a separate pass.
        hook: changes to values during the pass, in the syntax of `--hook`.
        mode: `eval`, `train` (the record then has the drift of every batch norm), or `auto`, which is eval.
        columns: compute only what these columns of the table need; None for all but quantiles, which are named by
            their percentile: `p01`, `p50`, `p99.9`. They are exact, and read every image twice. `channel_zeros`
            counts the zeros of each channel; it is also left out by default.
        out: folder that gets every finished block of image files, so that `resume` can continue; `record.save(out)`
            adds the report. `force` allows one that is not empty.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded or raises an error, no attention was seen, or a file cannot be
            read or written (exit 4).
    """
    check_word("mode", mode, MODES)
    check_range("near_zero", near_zero, least=0)
    blocks = Blocks(out, force=force, **block_keywords(keywords))
    is_training = mode == "train"
    subject = Subject("stats", model, inputs, keywords, hook=hook, progress=progress)
    subject.open(is_training=is_training)
    selection = subject.select(layer, exclude)
    module = subject.loaded.module
    batch_norms = BatchNormObserver() if is_training else None
    figures: dict[str, Any] = {
        figure: columns is None or key in columns for figure, key in COLUMN_OF_FIGURE.items()
    }
    more: dict[str, Any] = {
        "quantiles": quantiles_in(columns or ()),
        "channel_zeros": "channel_zeros" in (columns or ()),
    }
    options = {
        "layer": as_patterns(layer),
        "exclude": as_patterns(exclude),
        "near_zero": near_zero,
    }
    alone = _why_alone(mode, attention=attention, hook=hook)
    arguments: dict[str | int, ArgumentStats] = {}
    with blocks.begin(subject, {**options, "figures": figures, **more}, alone):
        activations = observe_activations(
            module,
            blocks.over,
            selection,
            Wanted(threshold=near_zero, **figures, **more),
            interventions=subject.bind().interventions,
            batch_norms=batch_norms,
            family=subject.loaded.family,
            entering=arguments,
            n_batches=subject.inputs.n_batches,
        )
    rows = to_rows(activations)
    heads = _attention(subject, selection, is_training) if attention else ()
    hooks = subject.conclude()
    if not rows:
        raise _nothing_to_show(subject, selection)
    subject.warn(blocks.warnings())
    return StatsRecord(
        run=subject.run(),
        layers=rows,
        images=subject.inputs.n_images,
        near_zero=near_zero,
        not_called=subject.uncalled(selection, [row.name for row in rows]),
        hooks=hooks,
        mode="train" if is_training else "eval",
        batch_norm=batch_norms.rows() if batch_norms else (),
        inputs=tuple(map(to_input_row, arguments.values())),
        attention=heads,
    )


def _why_alone(mode: str, *, attention: bool, hook: str | Sequence[str]) -> str:
    """Say why one process has to run all batches in one go; empty if it need not."""
    reasons = {
        "in train mode every batch norm sees the batches in order": mode == "train",
        "the table of attention cannot be computed in blocks": attention,
        "--hook counts its changes over all batches": bool(hook),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _nothing_to_show(subject: Subject, selection: Selection) -> CannotRunError:
    missing = subject.uncalled(selection, ())
    name = subject.loaded.info.name
    if selection.names is not None and missing:
        message = f"the forward of '{name}' does not call {some(missing)}"
    else:
        message = f"no layer of '{name}' outputs a tensor"
    return CannotRunError(message, "modelscope summary ...   shows what runs")


def _attention(subject: Subject, selection: Selection, is_training: bool) -> tuple[AttentionStats, ...]:
    """Run all batches again to measure attention."""
    loaded = subject.loaded
    for intervention in subject.bound.interventions:
        intervention.repeat()
    rows = observe_attention(
        loaded.module,
        (
            training_args(loaded.module, loaded.family, batch.args) if is_training else batch.args
            for batch in subject.track(subject.inputs, "attention")
        ),
        selection,
        is_training=is_training,
        interventions=subject.bound.interventions,
    )
    if not rows:
        raise CannotRunError(NO_ATTENTION, "modelscope summary ...")
    return rows
