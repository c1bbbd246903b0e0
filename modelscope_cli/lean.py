"""Start fast: neither import `torch._dynamo` and sympy (over a second) for command lines that compile nothing, nor
search what is imported for garbage (a third of a second).

Only the shell uses this; other processes are left alone. `MSCOPE_LEAN=0` switches it off. Standard library only.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import Any

_IS_OPEN: ContextVar[bool] = ContextVar("lean", default=False)
_IS_FROZEN: ContextVar[bool] = ContextVar("frozen", default=False)
_THRESHOLDS = gc.get_threshold()


@contextmanager
def lean_imports() -> Iterator[None]:
    """Enable `without_dynamo` while open, and collect garbage rarely; for the shell, around one command line."""
    is_open = os.environ.get("MSCOPE_LEAN") != "0"
    token = _IS_OPEN.set(is_open)
    collect_garbage_rarely()
    try:
        yield
    finally:
        _IS_OPEN.reset(token)
        gc.set_threshold(*_THRESHOLDS)
        if _IS_FROZEN.get():
            gc.unfreeze()
            _IS_FROZEN.set(False)


def collect_garbage_rarely() -> None:
    """Collect garbage rarely from now on; under the shell only."""
    if _IS_OPEN.get():
        gc.set_threshold(100_000, *_THRESHOLDS[1:])


def collect_new_garbage() -> None:
    """Collect garbage as often as Python does, but among the objects made from now on; under the shell only.

    To be called when most is imported, and before anything large is made that could become garbage.
    """
    if _IS_OPEN.get():
        if not _IS_FROZEN.get() and _is_nothing_frozen():
            gc.freeze()
            _IS_FROZEN.set(True)
        gc.set_threshold(*_THRESHOLDS)


@cache
def _is_nothing_frozen() -> bool:
    """Tell whether this process had frozen nothing when first asked: the objects are counted one by one."""
    return not gc.get_freeze_count()


def _disable(fn: Callable[..., Any] | None = None, recursive: bool = True, **_: Any) -> Any:
    """Replace `torch._dynamo.disable`: nothing is compiled, so nothing has to be disabled."""
    return fn if fn is not None else lambda wrapped: wrapped


def _is_compile_supported(device_type: Any) -> Any:
    """Call the real function; the stand-ins are removed by the time torchvision calls this."""
    return importlib.import_module("torch._dynamo.utils").is_compile_supported(device_type)


def _is_same(x: Any, y: Any) -> bool:
    if isinstance(x, (tuple, list)):
        return len(x) == len(y) and all(map(_is_same, x, y))
    return bool(x == y)


def _itself(value: Any, skip: int = 0) -> Any:
    return value


# Names used by torchvision's imports, dispatch modes and the shape rules of meta tensors. Shapes are plain integers
# here: symbols could only come from the real modules.
_SERVED: dict[str, dict[str, Any]] = {
    "torch._dynamo": {"disable": _disable},
    "torch._dynamo.utils": {"is_compile_supported": _is_compile_supported},
    "sympy": {"Basic": type("Basic", (), {})},
    "torch.fx.experimental.symbolic_shapes": {
        "expect_true": _itself,
        "guard_int": _itself,
        "guard_or_false": _itself,
        "guard_or_true": _itself,
        "guard_size_oblivious": _itself,
        "guarding_hint_or_throw": _itself,
        "has_guarding_hint": lambda value: True,
        "is_nested_int": lambda value: False,
        "statically_known_true": _itself,
        "sym_and": lambda *values: all(values),
        "sym_eq": _is_same,
        "sym_or": lambda *values: any(values),
    },
}
_PATHS = {("torch._dynamo", "__path__"), ("sympy", "__path__")}


class _StandIn(ModuleType):
    """A module with a few names; any other name replaces it with the real module."""

    def __getattr__(self, attribute: str) -> Any:
        # `import sympy.core` reads __path__ of its parent; the import system probes other dunders too.
        if attribute.startswith("__") and (self.__name__, attribute) not in _PATHS:
            raise AttributeError(attribute)
        _remove_stand_ins()
        return getattr(importlib.import_module(self.__name__), attribute)


def _remove_stand_ins() -> None:
    for name in _SERVED:
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(vars(torch).get("_dynamo"), _StandIn):
        del torch._dynamo


@contextmanager
def without_dynamo(applies: bool = True) -> Iterator[None]:
    """Replace `torch._dynamo`, sympy and the symbolic shapes by stubs while open, under the shell.

    Does nothing if a real one is loaded already, or outside `lean_imports`. At exit the stubs are removed, so a
    later import gets the real module; so does any access to a name that a stub lacks.

    Args:
        applies: False to do nothing, as for code of the user.
    """
    if not (applies and _IS_OPEN.get()) or any(name in sys.modules for name in _SERVED):
        yield
        return
    for name, served in _SERVED.items():
        sys.modules[name] = stand_in = _StandIn(name)
        vars(stand_in).update(served)
    try:
        yield
    finally:
        _remove_stand_ins()
