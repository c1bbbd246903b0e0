"""Build models whose values do not exist (on meta), or are all about to be overwritten."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
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
    is_paused = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RANDOM_FILLS and not self.is_paused:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


class _KeepValuesOnCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _VALUE_MAKERS:
            kwargs = {"device": "cpu", **(kwargs or {})}
        return func(*args, **(kwargs or {}))


def skip_random_fills() -> _SkipRandomFills:
    """Return a mode under which random initialisation leaves tensors as they are.

    For models whose values do not exist (meta) or are all about to be overwritten. On meta it also avoids
    the Python decomposition of random fills, which imports sympy and dynamo.
    """
    return _SkipRandomFills()


class _ImportForReal:
    """The first of `sys.meta_path`: what a builder imports is executed as if nothing were on meta.

    A module stays imported, so the tensors that it makes for itself would be without values for good.
    """

    def __init__(self, fills: _SkipRandomFills) -> None:
        self._fills = fills

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader: Any = spec and spec.loader
        if not hasattr(loader, "exec_module") or isinstance(loader, type):  # of a builtin or frozen module
            return spec

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            was_paused, self._fills.is_paused = self._fills.is_paused, True
            try:
                with torch.device("cpu"):
                    loader.exec_module(module)
            finally:
                self._fills.is_paused = was_paused

        with suppress(AttributeError):  # a loader with slots
            loader.exec_module = exec_module
        return spec


@contextmanager
def on_meta() -> Iterator[None]:
    """Build without memory while open: tensors on meta, except those that constructors read values from."""
    fills = skip_random_fills()
    finder: Any = _ImportForReal(fills)
    sys.meta_path.insert(0, finder)
    try:
        with torch.device("meta"), _KeepValuesOnCpu(), fills:
            yield
    finally:
        sys.meta_path.remove(finder)
