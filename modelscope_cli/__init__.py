"""See what happens inside a PyTorch vision model.

>>> import modelscope_cli as mscope
>>> mscope.summary("resnet34")

The names below are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
_HOMES = {
    "load": "api",
    "lrfind": "training.lrfind",
    "observe": "api",
    "stats": "analysis.activations.stats",
    "summary": "api",
    "train": "training.train",
    "watch": "watching.watch",
}
__all__ = ["__version__", "load", "lrfind", "observe", "stats", "summary", "train", "watch"]

if TYPE_CHECKING:
    from modelscope_cli.analysis.activations.stats import stats
    from modelscope_cli.api import load, observe, summary
    from modelscope_cli.training.lrfind import lrfind
    from modelscope_cli.training.train import train
    from modelscope_cli.watching.watch import watch


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"modelscope_cli.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
