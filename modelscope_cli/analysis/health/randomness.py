"""What a model draws at random in eval mode, and where in its source."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

_NAMES = ("rand", "normal", "bernoulli", "multinomial", "dropout", "poisson", "exponential_", "uniform_")
_OURS = Path(__file__).parents[2]
_TORCH = Path(torch.__file__).parent


class RandomDraws(TorchFunctionMode):
    """Notes the random functions that are called while it is on: `torch.rand at net.py:12`, each once.

    Attributes:
        seen: the name of each function and its place, in the order of the calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name.startswith(_NAMES) or name.endswith("dropout"):
            kwargs = kwargs or {}
            is_off = "dropout" in name and not (args[2:3] or (kwargs.get("training", True),))[0]
            if not is_off:
                self.seen.setdefault(f"{resolve_name(func) or name}{_place()}")
        return func(*args, **(kwargs or {}))


def _place() -> str:
    """Return the line of the model that called: the nearest that is neither torch's nor ours."""
    frame = sys._getframe(2)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if not (file.is_relative_to(_TORCH) or file.is_relative_to(_OURS)) and file.suffix == ".py":
            return f" at {file.name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
