"""Build models whose values do not exist (on meta), or are all about to be overwritten."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_RANDOM_FILLS = frozenset(
    {
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        nn.init.normal_,
        nn.init.uniform_,
        nn.init.trunc_normal_,
        nn.init.kaiming_normal_,
        nn.init.kaiming_uniform_,
        nn.init.xavier_normal_,
        nn.init.xavier_uniform_,
    }
)
# Some constructors read these back: regnet its widths, stochastic depth its rates.
_VALUE_MAKERS = frozenset({torch.arange, torch.linspace, torch.tensor})


class _SkipRandomFills(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RANDOM_FILLS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


class _KeepValuesOnCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _VALUE_MAKERS:
            kwargs = {"device": "cpu", **(kwargs or {})}
        return func(*args, **(kwargs or {}))


def skip_random_fills() -> TorchFunctionMode:
    """Return a mode under which random initialisation leaves tensors as they are.

    For models whose values do not exist (meta) or are all about to be overwritten. On meta it also avoids
    the Python decomposition of random fills, which imports sympy and dynamo.
    """
    return _SkipRandomFills()


@contextmanager
def on_meta() -> Iterator[None]:
    """Build without memory while open: tensors on meta, except those that constructors read values from."""
    with torch.device("meta"), _KeepValuesOnCpu(), skip_random_fills():
        yield
