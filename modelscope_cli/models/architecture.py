"""Describe an architecture and build it: seeded, on meta, or unwrapped from a trainer."""

import copy
import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from modelscope_cli.errors import CannotRunError, refuse_failed_device
from modelscope_cli.plain_text import in_one_line


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generators of torch, Python and NumPy (where loaded) while open; then restore them.

    Models are initialised on the CPU and moved, so generators of other devices are left alone.
    """
    numpy = sys.modules.get("numpy")
    torch_state, python_state = torch.default_generator.get_state(), random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


def model_inside(module: nn.Module, name: str | None = None) -> nn.Module:
    """Return the module inside `torch.compile`; any other module unchanged.

    Raises:
        CannotRunError: it is or has a trainer: a module whose `train()` does not switch the mode, such as
            `ultralytics.YOLO`. None of its methods is called.
    """
    name = name or type(module).__name__
    while type(module).__name__ == "OptimizedModule":
        module = module.get_submodule("_orig_mod")
    for layer, submodule in module.named_modules():
        if not _switches_mode(submodule):
            where = f"layer '{layer}' of '{name}'" if layer else f"'{name}'"
            kind = type(submodule).__name__
            message = f"{where} is a '{kind}', whose train() overrides nn.Module's and is not called"
            raise CannotRunError(
                message, "--model FILE.py:NAME   a function there that returns the module inside"
            )
    return module


def copied(module: nn.Module, message: str, hint: str) -> nn.Module:
    """Return a deep copy of a user's module; `message` and `hint` are those of the error if it cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # from any attribute of the module
        refuse_failed_device(error)
        raise CannotRunError(f"{message}: {type(error).__name__}: {in_one_line(error, 200)}", hint) from error


def inside_notes(module: nn.Module, inner: nn.Module) -> tuple[str, ...]:
    """Return a note that a model was unwrapped; empty if it was not wrapped."""
    return () if inner is module else ("torch.compile: the model is inspected uncompiled",)


def _switches_mode(module: nn.Module) -> bool:
    """Tell whether `module.train(False)` switches the mode, by its signature and the names it uses."""
    function = inspect.unwrap(getattr(module.train, "__func__", module.train))
    if function is nn.Module.train or not hasattr(function, "__code__"):
        return True
    first = next(iter(inspect.signature(module.train).parameters.values()), None)
    if first is None:
        return False
    is_open = first.kind is first.VAR_POSITIONAL or isinstance(first.default, bool)
    if first.name == "mode" and (is_open or first.default is first.empty):
        return True
    return is_open and bool({"super", "Module", "training"} & set(function.__code__.co_names))


_RANDOM_FILLS = frozenset(
    {
        *(torch.Tensor.normal_, torch.Tensor.uniform_),
        *(nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_),
        *(nn.init.kaiming_normal_, nn.init.kaiming_uniform_, nn.init.xavier_normal_, nn.init.xavier_uniform_),
    }
)
# Some constructors read these back: regnet its widths, stochastic depth its rates.
_VALUE_MAKERS = frozenset({torch.arange, torch.linspace, torch.tensor})


class SkipRandomFills(TorchFunctionMode):
    """A mode under which random initialisation leaves tensors unchanged.

    For models whose values do not exist (meta) or are all about to be overwritten. On meta it also avoids
    the Python decomposition of random fills, which imports sympy and dynamo.
    """

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


class _ImportForReal:
    """A `sys.meta_path` finder that executes modules imported by a builder with values, outside the meta device."""

    def __init__(self, fills: SkipRandomFills) -> None:
        self._fills = fills

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        # Builds may nest: two of these would ask each other without end.
        theirs = (finder for finder in sys.meta_path if not isinstance(finder, _ImportForReal))
        others = (finder for finder in theirs if hasattr(finder, "find_spec"))
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
    """Build on the meta device while open, except tensors whose values constructors read."""
    fills = SkipRandomFills()
    finder: Any = _ImportForReal(fills)
    # The finder comes last: torch imports what it needs for a default device when the first one is entered.
    with torch.device("meta"), _KeepValuesOnCpu(), fills, warnings.catch_warnings():
        # Of a builder that loads a state dict: values are not needed here
        warnings.filterwarnings("ignore", "for .*: copying from a non-meta")
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model that can be built: from torchvision, a hub or imported code."""

    source: str  # `zoo`, `timm`, `hf` or `import`, as in `records.ModelInfo`
    name: str  # the torchvision name, or the model as typed
    # `classification`, `segmentation`, `detection`, `video`, `optical_flow`, `quantization`; `custom` for all
    # others
    family: str
    # Function that makes the module, seeded, in train mode; number of classes, None for the default
    build: Callable[[int | None], nn.Module]
    takes_num_classes: bool  # whether `build` accepts a number of classes
    is_instance: bool = False  # whether `build` returns an existing module
    # Whether `build` calls a function or takes a module that may already have loaded weights
    is_factory: bool = False

    def on_meta(self) -> "Architecture":
        """Return the same architecture, built on the meta device."""

        def build(num_classes: int | None) -> nn.Module:
            with on_meta():
                module = self.build(num_classes)
            model_inside(module, self.name).to("meta")  # also the tensors kept on the CPU
            return module

        return replace(self, build=build)
