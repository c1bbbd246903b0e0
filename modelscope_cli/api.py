"""The same engine from a notebook: `summary`, `load`, `observe`.

Records render themselves as a table in a notebook and have `.to_dict()`.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from modelscope_cli.analysis.activations.observer import ActivationObserver, to_row
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.summary.summarize import summarize, summarize_module
from modelscope_cli.hooks.selection import names_of
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import LoadedModel, load_model
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.keywords import NEAR_ZERO
from modelscope_cli.records.run import ModelInfo, Run, WeightsInfo, versions
from modelscope_cli.records.stats import StatsRecord
from modelscope_cli.records.summary import SummaryRecord


def load(
    model: str,
    *,
    weights: str = "auto",
    checkpoint: str | Path | None = None,
    device: str = "auto",
    dtype: str = "float32",
    num_classes: int | None = None,
    seed: int = 0,
) -> LoadedModel:
    """Load a model as the command line does; `.module` is the `nn.Module`, in eval mode on the device.

    Raises:
        UsageError, CannotRunError: as on the command line; `str(error)` says what, `error.hint` what next.
    """
    return load_model(
        ModelRequest(
            model=model,
            weights=weights,
            checkpoint=Path(checkpoint) if checkpoint is not None else None,
            device=device,
            dtype=dtype,
            num_classes=num_classes,
            seed=seed,
        )
    )


def summary(
    model: str | nn.Module,
    *inputs: Tensor,
    input_shape: Sequence[int] | None = None,
    batch: int | None = None,
) -> SummaryRecord:
    """Return the layers of a model with their shapes, parameters and cost.

    Args:
        model: a name as on the command line, built without data; or a module of yours, run where it is.
        inputs: what to call a module with; left out, noise of `input_shape` or of a size it seems made for.

    Raises:
        UsageError, CannotRunError: a name that means nothing; a forward that raised.
    """
    shapes = (",".join(map(str, input_shape)),) if input_shape is not None else ()
    given = InputRequest(shapes=shapes, batch=batch)
    if isinstance(model, str):
        summarized = summarize(ModelRequest(model=model, weights="none"), given)
    else:
        summarized = summarize_module(_as_loaded(model), given, inputs)
    if summarized.error is not None:
        raise summarized.error
    run = _run("summary", summarized.loaded)
    return summarized.record(replace(run, input=summarized.given, warnings=summarized.warnings))


def _run(command: str, loaded: LoadedModel) -> Run:
    return Run(
        command=command,
        argv=(),
        model=loaded.info,
        input=None,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        seed=0,
        versions=versions(),
    )


def _as_loaded(module: nn.Module) -> LoadedModel:
    """Describe a module that was handed over, where it is and as it is."""
    import torch

    tensor = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), None)
    kind = type(module).__name__
    return LoadedModel(
        module=module,
        info=ModelInfo("object", kind, kind, WeightsInfo("object", "object", "handed over")),
        device=tensor.device if tensor is not None else torch.device("cpu"),
        dtype=tensor.dtype if tensor is not None else torch.float32,
        family="custom",
        transforms=None,
        categories=None,
    )


class Observation:
    """What `observe` gathers; `.record()` at any time gives the statistics of all forwards so far."""

    def __init__(self, loaded: LoadedModel, observer: ActivationObserver, near_zero: float) -> None:
        self._loaded = loaded
        self._observer = observer
        self._near_zero = near_zero

    def record(self) -> StatsRecord:
        """Return one row per output of each call, over all forwards; `images` counts along the first dimension."""
        self._observer.settle()
        activations = sorted(self._observer.activations.values(), key=lambda item: item.call.order)
        rows = tuple(to_row(activation) for activation in activations)
        images = rows[0].numel // max(math.prod(rows[0].shape[1:]), 1) if rows else 0
        return StatsRecord(_run("stats", self._loaded), rows, images, self._near_zero)

    def __str__(self) -> str:
        return str(self.record())

    def _repr_html_(self) -> str:
        return self.record()._repr_html_()


@contextmanager
def observe(
    model: nn.Module,
    layers: str | Sequence[str] = (),
    *,
    exclude: str | Sequence[str] = (),
    near_zero: float = NEAR_ZERO,
) -> Iterator[Observation]:
    """Gather statistics of the activations while you run the model yourself, in whichever mode it is.

    Args:
        layers, exclude: layer patterns as on the command line, without positions (`#`, `@`).
        near_zero: |x| below this counts as near zero.

    When the block ends every hook is gone; the model's own state is yours and is left alone.

    Raises:
        UsageError: a pattern that matches nothing.
    """
    take = [layers] if isinstance(layers, str) else list(layers)
    leave = [exclude] if isinstance(exclude, str) else list(exclude)
    names = names_of(model, take, leave)
    # The mean absolute deviation of several forwards would need each of them twice.
    observer = ActivationObserver(Wanted(mad=False, threshold=near_zero), is_innermost_only=not take)
    with HookSession(model, [observer], names=names, is_restoring=False):
        yield Observation(_as_loaded(model), observer, near_zero)
