"""`stats` and `observe`: the public functions."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Unpack

from torch import nn

from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver
from modelscope_cli.analysis.activations.observer import (
    ActivationObserver,
    ArgumentStats,
    observe_activations,
    to_input_row,
    to_rows,
)
from modelscope_cli.analysis.blocks.blocks import Blocks
from modelscope_cli.analysis.health.lost_signal import HARDLY, has_zero_weights
from modelscope_cli.analysis.outputs.degenerate import Degenerate, too_large
from modelscope_cli.analysis.predictions.preprocessing_check import tell_of_size
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.subject import Subject, describe_module, header
from modelscope_cli.errors import CannotRunError, ModelscopeError
from modelscope_cli.hooks.selection import Selection, names_of
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import Model
from modelscope_cli.records.display import report
from modelscope_cli.records.keywords import MODES, BlockKeywords, as_tuple, block_keywords, spelled_out
from modelscope_cli.records.naming import NEAR_ZERO, some
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.refusals import check_word
from modelscope_cli.records.run import ALIKE, Notice
from modelscope_cli.records.stats import COLUMN_OF_FIGURE, LARGE_SCORES, StatsRecord, quantiles_in


class Observation:
    """Statistics gathered by `observe`; `.record()` returns those of all forwards so far."""

    def __init__(self, loaded: LoadedModel, observer: ActivationObserver) -> None:
        self._loaded = loaded
        self._observer = observer

    def record(self) -> StatsRecord:
        """Return one row per output of each call, over all forwards; `images` counts along the first dimension."""
        self._observer.settle()
        rows = to_rows(self._observer.activations.values())
        images = rows[0].numel // max(math.prod(rows[0].shape[1:]) * rows[0].calls, 1) if rows else 0
        nothing = Notice("nothing_observed", "no layer has run inside the `with` block yet")
        run = header("stats", self._loaded, None, 0, [] if rows else [nothing])
        return StatsRecord(run, rows, images, NEAR_ZERO)

    def __str__(self) -> str:
        return str(self.record())

    def _repr_html_(self) -> str:
        return self.record()._repr_html_()


@contextmanager
def observe(
    model: nn.Module | LoadedModel, layer: str | Sequence[str] = (), *, exclude: str | Sequence[str] = ()
) -> Iterator[Observation]:
    """Gather statistics of the activations while you run the model yourself, in its current mode.

    When the block ends every hook is gone; the model's own state is yours and is left alone.

    Args:
        layer, exclude: layer patterns as on the command line, without positions (`#`, `@`).

    Raises:
        UsageError: a pattern that matches nothing.
    """
    loaded = model if isinstance(model, LoadedModel) else describe_module(model)
    take = as_tuple(layer)
    try:
        names = names_of(loaded.module, take, as_tuple(exclude))
    except ModelscopeError as error:
        error.speak_python()
        raise
    observer = ActivationObserver(Wanted(), is_innermost_only=not take)
    with HookSession(loaded.module, [observer], names=names, is_restoring=False):
        yield Observation(loaded, observer)


@spelled_out
def stats(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
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
        hook: changes to values during the pass, in the syntax of `--hook`.
        mode: `eval`, `train` (the record then has the drift of every batch norm), or `auto`, which is eval.
        columns: compute only what these columns of the table need; None for all but quantiles, which are named by
            their percentile: `p01`, `p50`, `p99.9`, at most 0.4 % from the exact value.
        out: folder that gets every finished block of image files, so that `resume` can continue; `record.save(out)`
            adds the report. `force` allows one that is not empty.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded or raises an error, or a file cannot be read or written (exit 4).
    """
    check_word("mode", mode, MODES)
    columns = [columns] if isinstance(columns, str) else columns
    for one in {*(columns or ())} - {*quantiles_in(columns or ())}:
        check_word("columns", one, [column.key for column in report().view_for("stats").columns])
    blocks = Blocks(out, force=force, **block_keywords(keywords))
    is_training = mode == "train"
    subject = Subject("stats", model, inputs, keywords, hook=hook, progress=progress)
    subject.open(is_training=is_training)
    tell_of_size(subject)
    selection = subject.select(layer, exclude)
    module = subject.loaded.module
    batch_norms = BatchNormObserver() if is_training else None
    figures: dict[str, Any] = {
        figure: columns is None or key in columns for figure, key in COLUMN_OF_FIGURE.items()
    }
    more: dict[str, Any] = {"quantiles": quantiles_in(columns or ())}
    options = {"layer": as_tuple(layer), "exclude": as_tuple(exclude)}
    alone = _why_alone(mode, hook)
    arguments: dict[str | int, ArgumentStats] = {}
    alikes: list[bool] = []
    with blocks.begin(subject, {**options, "figures": figures, **more}, alone):
        activations = observe_activations(
            module,
            blocks.over,
            selection,
            Wanted(**figures, **more),
            interventions=subject.bind().interventions,
            batch_norms=batch_norms,
            family=subject.loaded.family,
            entering=arguments,
            alikes=alikes,
        )
    rows = to_rows(activations)
    hooks = subject.conclude()
    if not rows:
        raise _nothing_to_show(subject, selection)
    code = ALIKE if alikes and all(alikes) else ""
    is_row = len(rows[-1].shape) == 2 and not layer and not exclude
    std = (rows[-1].std or 0.0) if is_row else 0.0
    is_suspect = is_row and subject.inputs.n_images == 1
    is_suspect = is_suspect and (any(row.std == 0 for row in rows) or has_zero_weights(module))
    least = HARDLY if std > LARGE_SCORES else 0.0 if is_suspect else None
    subject.tell_if_degenerate(Degenerate((code,) * subject.inputs.n_images), least=least)
    subject.warn(too_large(std, module, is_training=is_training))
    return StatsRecord(
        run=subject.run(),
        layers=rows,
        images=subject.inputs.n_images,
        near_zero=NEAR_ZERO,
        not_called=subject.uncalled(selection, [row.name for row in rows]),
        hooks=hooks,
        mode="train" if is_training else "eval",
        batch_norm=batch_norms.rows()() if batch_norms else (),
        inputs=tuple(map(to_input_row, arguments.values())),
    )


def _why_alone(mode: str, hook: str | Sequence[str]) -> str:
    """Say why one process has to run all batches in one go; empty if it need not."""
    reasons = {
        "in train mode every batch norm needs the batches in order": mode == "train",
        "--hook counts its changes over all batches": bool(hook),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _nothing_to_show(subject: Subject, selection: Selection) -> CannotRunError:
    missing = subject.uncalled(selection, ())
    name = subject.loaded.info.name
    if selection.names is not None and missing:
        message = f"forward() of '{name}' does not call {some(missing)}"
    else:
        message = f"no layer of '{name}' outputs a tensor"
    return CannotRunError(message, "modelscope summary ...   shows what runs")
