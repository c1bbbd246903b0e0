"""The same engine from a notebook: `load`, `observe`.

Records render themselves as a table in a notebook and have `.to_dict()`.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from modelscope_cli.analysis.activations.observer import ActivationObserver, to_row
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.subject import describe_module, header
from modelscope_cli.hooks.selection import names_of
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.models.load import LoadedModel, load_model
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.stats import StatsRecord


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
        return StatsRecord(header("stats", self._loaded, None, 0), rows, images, self._near_zero)

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
    near_zero: float = 0.05,
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
        yield Observation(describe_module(model), observer, near_zero)
