"""See what happens inside a PyTorch vision model.

>>> import modelscope_cli as mscope
>>> mscope.summary("resnet34")

The names below are loaded when they are first used, so that importing the package costs nothing.
"""

TYPE_CHECKING = False  # as type checkers read it; `typing` takes as long to import as Python takes to start
__version__ = "0.1.0"
_HOMES = {
    "hook": "analysis.hook",
    "load": "analysis.load",
    "observe": "analysis.activations.observe",
    "stats": "analysis.activations.stats",
    "summary": "api",
}
__all__ = ["__version__", "hook", "load", "observe", "stats", "summary"]

if TYPE_CHECKING:
    from modelscope_cli.analysis.activations.observe import observe
    from modelscope_cli.analysis.activations.stats import stats
    from modelscope_cli.analysis.hook import hook
    from modelscope_cli.analysis.load import load
    from modelscope_cli.api import summary


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"modelscope_cli.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
