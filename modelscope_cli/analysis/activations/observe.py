"""`observe`: the statistics of `stats` while the caller runs the model."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from modelscope_cli.analysis.activations.observer import ActivationObserver, to_rows
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.subject import as_patterns, describe_module, header
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.hooks.selection import names_of
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.records.naming import NEAR_ZERO
from modelscope_cli.records.run import Notice
from modelscope_cli.records.stats import StatsRecord


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
