"""The calls of torch's functions that clip gradients: their limits beside the norms of the gradients."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.hooks.fetch import numbers
from modelscope_cli.records.naming import rounded
from modelscope_cli.records.watch import CLIPPED
from modelscope_cli.source_location import place_of_caller
from modelscope_cli.watching.error_isolation import replaced

_MOST, _FEWEST = 64, 8  # norms that are kept of a line; that tell of it
_TO_NOTHING = 1e-4  # of the norm: a hundredth of what is usual for the largest gradients of a run


def of_clipping(by_norm: Any, by_value: Any) -> list[tuple[Any, str, Any]]:
    """Return replacements of torch's functions that clip gradients."""
    functions = ("clip_grad_norm_", by_norm), ("clip_grad_value_", by_value)
    places = torch.nn.utils, torch.nn.utils.clip_grad
    return [(place, name, function) for name, function in functions for place in places]


@dataclass(slots=True)
class ClipWatch:
    """What a script clips its gradients to, and the norms that they have before it, by line."""

    _limits: dict[str, float] = field(default_factory=dict)
    _norms: dict[str, list[Tensor]] = field(default_factory=dict)

    def installed(self, is_ours: Callable[[], bool]) -> AbstractContextManager[None]:
        """Observe while open."""

        def watched(original: Any) -> Any:
            def clip(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or not is_ours():
                    return original(parameters, limit, *args, **kwargs)
                held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
                self._see(held, limit)
                return original(held, limit, *args, **kwargs)

            return clip

        clips = torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_
        return replaced(*of_clipping(*map(watched, clips)))

    def _see(self, parameters: list[Tensor], limit: float) -> None:
        place = str(place_of_caller())
        self._limits[place] = float(limit)
        norms = self._norms.setdefault(place, [])
        gradients = [p.grad for p in parameters if p.grad is not None] if len(norms) < _MOST else []
        if gradients:
            norms.append(torch.nn.utils.get_total_norm(gradients).detach())  # fetched at the end

    def medians(self) -> dict[str, tuple[float, float]]:
        """Return the limit and the median norm of each line."""
        norms = {place: statistics.median(numbers(few)()) for place, few in self._norms.items() if few}
        return {place: (limit, norms.get(place, 0.0)) for place, limit in self._limits.items()}

    def at_end(self) -> Iterator[tuple[str, str]]:
        """Yield an event for each line that leaves next to nothing of the gradients."""
        for place, (limit, norm) in self.medians().items():
            if len(self._norms.get(place, ())) >= _FEWEST and limit < _TO_NOTHING * norm:
                words = f"gradients are clipped to {limit:.2g}, but their norm is {rounded(norm)} in most"
                words += f" steps: clipping makes them {norm / limit:,.0f} times smaller ({place})"
                yield CLIPPED, words
