"""See what happens inside a PyTorch vision model.

>>> import modelscope_cli as mscope
>>> mscope.summary("resnet34")

The names below are loaded when they are first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load", "observe", "summary"]

if TYPE_CHECKING:
    from modelscope_cli.api import load, observe, summary


def __getattr__(name: str) -> Any:
    if name in __all__:
        from modelscope_cli import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
